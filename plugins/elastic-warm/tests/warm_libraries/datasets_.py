"""A dataset that is mapped in subprocesses, shuffled, and split among the workers."""

import probe

import datasets
from datasets.distributed import split_dataset_by_node


def main():
    probe.imported("datasets")
    datasets.disable_progress_bars()
    samples = datasets.Dataset.from_dict({"number": list(range(100))})
    samples = samples.map(twice, num_proc=2, cache_file_name=f"{probe.folder()}/mapped.arrow")
    part = split_dataset_by_node(samples.shuffle(seed=8), rank=probe.RANK, world_size=2)
    probe.result("part", part["number"][:10])
    probe.result("sum", sum(part["twice"]))
    probe.result("fingerprint", samples._fingerprint)
    probe.end()


def twice(sample):
    return {"twice": sample["number"] * 2}


if __name__ == "__main__":
    main()
