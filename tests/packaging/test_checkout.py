"""The README's command installs the core and a plugin from the checkout."""

from __future__ import annotations

import sysconfig
import venv

import pytest
from blocks import ROOT, block_of


@pytest.mark.torch
def test_readmes_install_command_works(shell):
    """A fresh environment that already has the dependencies, so nothing is downloaded."""
    environment = shell.folder / "environment"
    venv.create(environment, with_pip=False)
    (own,) = environment.glob("lib/python*/site-packages")
    here = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (own / "here.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    install = block_of("README.md", "python -m pip install . ")
    assert install == block_of("docs/start/install.md", "python -m pip install . ")
    look = block_of("docs/start/install.md", "elastic --version")
    said = shell.run(
        f". '{environment}/bin/activate'\ncd '{ROOT}'\n{install}\ncd /\n{look}\n",
        PIP_NO_INDEX="1", PIP_NO_BUILD_ISOLATION="0", PIP_DISABLE_PIP_VERSION_CHECK="1",  # 0 means without isolation
        PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    assert "Successfully installed elastic-c10d-" in said
    assert "elastic-c10d 0." in said.partition("Successfully installed")[2]  # output of `elastic plugins`
    assert (environment / "bin" / "elastic").exists()
    assert (own / "elastic_c10d").is_dir()
    assert (own / "elastic_core").is_dir()
