import pytest


def test_a_script_is_required_only_to_run(desk):
    assert "requires a script" in desk.problems("--nnodes 1")["script"]
    assert desk.read("--nnodes 1", require_script=False).script is None
    assert desk.read("missing.py", require_script=False).script == "missing.py"


def test_a_missing_script_names_the_path_looked_at(desk):
    assert str(desk.folder / "missing.py") in desk.problems("missing.py")["script"]


@pytest.mark.parametrize("path", ["pkg/train.py", "pkg/train/__main__.py"])
def test_a_module_gets_the_hint_to_write_m(desk, path):
    desk.write("", path)
    assert "write -m pkg.train" in desk.problems("pkg.train")["script"]


def test_an_installed_module_gets_it_too(desk):
    assert "write -m json.tool" in desk.problems("json.tool")["script"]
    assert "check the path" in desk.problems("no_such_module_anywhere")["script"]


def test_folders_are_scripts_too(desk):
    desk.write("", "app/__main__.py")
    assert desk.read("app").script == "app"


def test_modules_are_left_to_the_interpreter(desk):
    assert desk.read("-m no.such.module --x").script_args == ("--x",)


def test_commands_are_looked_up_in_the_path_of_the_environment(desk):
    command = desk.write("#!/bin/sh\n", "bin/hello")
    environ = {"PATH": str(desk.folder / "bin")}
    assert "in PATH" in desk.problems("--no-python hello", environ)["script"]
    assert "chmod" in desk.problems("--no-python ./bin/hello", environ)["script"]
    command.chmod(0o755)
    assert desk.read("--no-python hello", environ).script == "hello"
    assert desk.read("--no-python bin/hello", {}).script == "bin/hello"
    assert "remove --no-python" in desk.problems("--no-python no/such")["script"]


def test_module_and_no_python_exclude_each_other(desk):
    assert set(desk.problems("-m --no-python train.py")) == {"--module"}


def test_run_path_wins(desk):
    reading = desk.read("--run-path -m --no-python train.py")
    settings = reading.settings
    assert (settings.run_path, settings.module, settings.no_python) == (True, False, False)
    assert reading.origins["module"] == "overridden by --run-path"
    assert "script" in desk.problems("--run-path -m missing.py")


def test_where_the_script_stands_is_not_guessed_after_an_unknown_switch(desk):
    assert set(desk.problems("--zzzzqqq value train.py")) == {"--zzzzqqq"}
