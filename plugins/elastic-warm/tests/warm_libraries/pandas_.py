"""Groups, joins, a file of comma separated values, and times."""

import io

import probe

import pandas

probe.imported("pandas")
frame = pandas.DataFrame({"key": list("abcab"), "value": range(5), "when": pandas.date_range("2026-01-01", periods=5)})
probe.result("groups", frame.groupby("key")["value"].sum().to_dict())
probe.result("joined", frame.merge(frame, on="key")["value_x"].tolist())
text = frame.to_csv(index=False)
probe.result("read", str(pandas.read_csv(io.StringIO(text), parse_dates=["when"]).dtypes.to_dict()))
probe.result("resampled", frame.set_index("when")["value"].resample("2D").mean().tolist())
probe.result("sample", frame.sample(3, random_state=probe.RANK)["value"].tolist())
probe.random("sample", frame.sample(frac=400, replace=True)["value"].tolist()[:60])
probe.end()
