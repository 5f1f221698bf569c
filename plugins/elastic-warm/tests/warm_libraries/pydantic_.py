"""Settings that are checked, from variables and text."""

import os

import probe

import pydantic

probe.imported("pydantic")


class Settings(pydantic.BaseModel):
    rank: int
    size: int = 2
    words: list[str] = []


probe.variable("rank", Settings(rank=os.environ["RANK"]).model_dump())
try:
    Settings(rank="none")
except pydantic.ValidationError as error:
    probe.result("error", error.errors(include_url=False))
probe.end()
