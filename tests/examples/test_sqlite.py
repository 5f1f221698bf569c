"""The example of a third party's backend: the tests follow its README word by word in a separate environment."""

from __future__ import annotations

import contextlib
import re
import shutil
import sysconfig
from pathlib import Path

import pytest
from blocks import Shell

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic-sqlite"
README = (EXAMPLE / "README.md").read_text()
PACKAGE = [f"elastic_sqlite/{path.name}" for path in sorted((EXAMPLE / "elastic_sqlite").glob("*.py"))]
SHOWN = dict(re.findall(r"`([\w/.]+)`:\n\n```\w+\n(.*?)^```", README, re.S | re.M))
FILES = ["pyproject.toml", *PACKAGE, "tests/test_contract.py"]
ENVIRONMENT = {
    "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0",  # 0 means without isolation
}  # fmt: skip


def blocks(language):
    """The README's blocks in this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.S | re.M)


def shell_block(words):
    """The shell block that contains these words."""
    (block,) = [block for block in blocks("sh") if words in block]
    return block


class Environment:
    """The folder that the first block creates, with its virtual environment, which also sees the packages installed
    here: pip, and those that would come from the network."""

    def __init__(self, shell):
        root = self.folder = shell.folder
        self._shell = shell
        make, install = shell_block("venv").split("\n. .venv/bin/activate\n")
        self.run(make.replace("venv .venv", "venv --without-pip .venv"), root)
        self.folder = root / "elastic-sqlite"
        (own,) = self.folder.glob(".venv/lib/python*/site-packages")
        here = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        lines = [f"import site; site.addsitedir({path!r})\n" for path in here]  # including the .pth files in them
        (own / "here.pth").write_text("".join(lines))
        (root / "elastic-core").symlink_to(EXAMPLE.parents[1])
        self.run(install, self.folder)

    def run(self, script, cwd, times=1):
        """Run the script this many times in parallel in the activated environment; each must succeed. Returns the
        output of all."""
        activate = self.folder / ".venv/bin/activate"  # it reads variables that sh does not set
        activated = f"set +u\n. '{activate}'\nset -u\n" if activate.exists() else ""
        return self._shell.run(f"cd '{cwd}'\n{activated}{script}", times, **ENVIRONMENT)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment after step 5, created only from the README's blocks, and the output of that step."""
    with contextlib.closing(Shell(tmp_path_factory.mktemp("sqlite"), limit_s=300)) as shell:
        environment = Environment(shell)
        for name, text in SHOWN.items():
            (environment.folder / name).write_text(text)
        yield environment, environment.run(shell_block("pip wheel"), environment.folder)


def test_readme_shows_the_files_unchanged():
    assert {name: (EXAMPLE / name).read_text() for name in FILES} == SHOWN


def test_store_has_at_most_sixty_lines():
    assert len((EXAMPLE / "elastic_sqlite" / "store.py").read_text().splitlines()) <= 60


def test_contract_test_fits_on_a_page():
    assert len((EXAMPLE / "tests" / "test_contract.py").read_text().splitlines()) < 40


def test_wheel_is_built_installed_and_tested(installed):
    environment, printed = installed
    assert "Successfully installed elastic-sqlite-0.1.0" in printed
    assert re.search(r"\d+ passed", printed)
    assert not re.search(r"\d+ (failed|error)", printed)
    plugins = printed.partition("passed")[2]
    assert "elastic-sqlite 0.1.0" in plugins
    assert "rendezvous backend sqlite: nodes meet at a SQLite file" in plugins
    assert "store sqlite: a SQLite file" in plugins
    where = environment.run("python -c 'import elastic_sqlite; print(elastic_sqlite.__file__)'", environment.folder)
    assert Path(where).is_relative_to(environment.folder)
    assert (Path(where.strip()).parent / "py.typed").exists()


def test_other_tests_of_the_example_pass(installed, tmp_path):
    environment, _ = installed
    for name in ("test_bad_input.py", "test_processes.py"):
        shutil.copy(EXAMPLE / "tests" / name, tmp_path)
    printed = environment.run("python -m pytest -p no:cacheprovider .", tmp_path)
    assert re.search(r"\d+ passed", printed)


@pytest.mark.nightly
@pytest.mark.torch
def test_two_agents_train_and_status_sees_them(installed, tmp_path):
    environment, _ = installed
    (settings,) = [block for block in blocks("toml") if "backend" in block and "endpoint" in block]
    (environment.folder / "elastic.toml").write_text(settings.replace("/shared", str(tmp_path)))
    environment.run(shell_block("train.py ."), environment.folder)
    printed = environment.run(shell_block("elastic run"), environment.folder, times=2)
    assert "epoch 4/4" in printed
    assert "world size 2" in printed
    assert (environment.folder / "digits.pt").exists()
    assert "succeeded" in environment.run(shell_block("elastic status"), environment.folder)


def test_every_block_of_the_readme_is_used():
    assert len(blocks(r"\w+")) == len(FILES) + len(("venv", "pip wheel", "train.py .", "toml", "elastic run", "status"))
