"""Tables in memory and in files, read by Arrow's own threads."""

import os

import probe

import pyarrow
import pyarrow.compute
import pyarrow.parquet

probe.imported("pyarrow")
table = pyarrow.table({"number": list(range(1000)), "word": [f"word {number % 7}" for number in range(1000)]})
path = os.path.join(probe.folder(), "table.parquet")
pyarrow.parquet.write_table(table, path, row_group_size=100)
again = pyarrow.parquet.read_table(path, use_threads=True)
probe.result("sum", pyarrow.compute.sum(again["number"]).as_py())
probe.result("groups", sorted(again.group_by("word").aggregate([("number", "sum")]).to_pylist(), key=str))
probe.variable("threads", [pyarrow.cpu_count(), pyarrow.io_thread_count(), pyarrow.default_memory_pool().backend_name])
probe.end()
