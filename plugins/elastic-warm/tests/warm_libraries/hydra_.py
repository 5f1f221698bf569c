"""A configuration composed by hydra, with its own folder and log."""

import sys

import probe

import hydra
from omegaconf import OmegaConf

probe.imported("hydra")
sys.argv += [f"hydra.run.dir={probe.folder()}", "+size=3"]


@hydra.main(version_base=None)
def main(settings):
    probe.result("settings", OmegaConf.to_container(settings))
    probe.result("name", hydra.core.hydra_config.HydraConfig.get().job.name)
    probe.end()


if __name__ == "__main__":
    main()
