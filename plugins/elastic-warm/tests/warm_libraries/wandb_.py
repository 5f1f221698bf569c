"""An offline run of wandb."""

import probe

import wandb

probe.imported("wandb")
run = wandb.init(project="warm", mode="offline", dir=probe.folder(), config={"rank": probe.RANK})
for step in range(3):
    run.log({"loss": 1 / (step + 1)})
probe.random("id", run.id)
probe.result("summary", [run.summary["loss"], run.summary["_step"]])
probe.result("configuration", dict(run.config))
run.finish()
probe.end()
