"""Tables over Rust's threads."""

import probe

import polars

probe.imported("polars")
table = polars.DataFrame({"number": range(1000), "word": [f"word {number % 7}" for number in range(1000)]})
sums = table.lazy().group_by("word").agg(polars.col("number").sum()).sort("word").collect()
probe.result("sums", sums.rows())
probe.variable("threads", polars.thread_pool_size())
probe.random("sample", table.sample(3)["number"].to_list())
probe.end()
