import pytest


def test_script_is_required_only_to_run(config_reader):
    assert "requires a script" in config_reader.problems("--nnodes 1")["script"]
    assert config_reader.read("--nnodes 1", require_script=False).script is None
    assert config_reader.read("missing.py", require_script=False).script == "missing.py"


def test_missing_script_error_has_the_full_path(config_reader):
    assert str(config_reader.folder / "missing.py") in config_reader.problems("missing.py")["script"]


@pytest.mark.parametrize("path", ["pkg/train.py", "pkg/train/__main__.py"])
def test_module_name_without_m_flag_gets_a_hint(config_reader, path):
    config_reader.write("", path)
    assert "write -m pkg.train" in config_reader.problems("pkg.train")["script"]


def test_installed_module_without_m_flag_gets_a_hint(config_reader):
    assert "write -m json.tool" in config_reader.problems("json.tool")["script"]
    assert "check the path" in config_reader.problems("no_such_module_anywhere")["script"]


def test_folder_with_main_is_a_script(config_reader):
    config_reader.write("", "app/__main__.py")
    assert config_reader.read("app").script == "app"


def test_modules_are_not_checked(config_reader):
    assert config_reader.read("-m no.such.module --x").script_args == ("--x",)


def test_commands_are_looked_up_in_path(config_reader):
    command = config_reader.write("#!/bin/sh\n", "bin/hello")
    environ = {"PATH": str(config_reader.folder / "bin")}
    assert "in PATH" in config_reader.problems("--no-python hello", environ)["script"]
    assert "chmod" in config_reader.problems("--no-python ./bin/hello", environ)["script"]
    command.chmod(0o755)
    assert config_reader.read("--no-python hello", environ).script == "hello"
    assert config_reader.read("--no-python bin/hello", {}).script == "bin/hello"
    assert "remove --no-python" in config_reader.problems("--no-python no/such")["script"]


def test_module_and_no_python_exclude_each_other(config_reader):
    assert set(config_reader.problems("-m --no-python train.py")) == {"--module"}


def test_run_path_overrides_module_and_no_python(config_reader):
    reading = config_reader.read("--run-path -m --no-python train.py")
    settings = reading.settings
    assert (settings.run_path, settings.module, settings.no_python) == (True, False, False)
    assert reading.origins["module"] == "overridden by --run-path"
    assert "script" in config_reader.problems("--run-path -m missing.py")


def test_unknown_switch_suppresses_the_script_error(config_reader):
    assert set(config_reader.problems("--zzzzqqq value train.py")) == {"--zzzzqqq"}
