"""The selection of sources, and what the plugin imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import structlog
from elastic_notices.plugin import elastic_add_options, elastic_notices

from elastic_core.plugin import Context, type_options

NAMES = [record.name for record in elastic_notices()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("selection", [None, "", " , "])
def test_source_that_is_not_selected_has_no_notices(start, name, selection):
    assert list(start(name, notices=selection)) == []


def test_several_sources_are_selected(start, tmp_path):
    (tmp_path / "leave").write_text("rack 7")
    for selection in ("file,azure", " azure , file "):
        found = start("file", lambda seconds: False, notices=selection, notice_file=str(tmp_path / "leave"))
        assert [notice.reason for notice in found] == ["rack 7"]
        assert list(start("http", notices=selection)) == []


def test_unknown_source_is_a_configuration_error():
    _, (problem,) = type_options(elastic_add_options(), {"notices": "file,asw"}, "a test")
    assert str(problem).startswith("a test: notices: no notice source is named 'asw' (sources: aws, aws-rebalance, ")


def test_option_of_a_source_that_is_not_selected_is_reported():
    (record,) = (record for record in elastic_notices() if record.name == "file")
    options = {option.name: option.default for option in elastic_add_options()} | {"notice_file": "/leave"}
    with structlog.testing.capture_logs() as logged:
        assert list(record.factory(Context(options=options, log=structlog.get_logger()), lambda seconds: False)) == []
    assert [line["origin"] for line in logged] == ["--notice-file"]


@pytest.mark.integration
def test_plugin_imports_no_http_client():
    code = "import sys, elastic_notices.plugin as p; p.elastic_notices(); p.elastic_add_options(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"urllib3", "http.client", "ssl", "elastic_notices.polling", "subprocess"}.isdisjoint(loaded)
