"""Bytes that are worth trying wherever something is read."""

TOKENS = (
    b"", b"\0", b"\n", b"\r", b"\t", b" ", b"\xff", b"\xed\xa0\x80", b"\xe2\x80\xae", b"\x1b[31m",
    b"%00", b"%0a", b"%ff", b"0", b"-1", b"007", b"+5", b"1_000", b"1e999", b"-0.0", b"0.5", b"NaN",
    b"Infinity", b"-Infinity", b"1e-400",
    b"4294967296", b"2147483648", b"9223372036854775807", b"9223372036854775808", b"1099511627776",
    b"9" * 18, b"9" * 19, b"9" * 400, b"9" * 4000, "\u0663".encode(), b"0x" + b"f" * 40,
    b"null", b"true", b"false", b"[]", b"{}", b'""', b"[", b"]", b"{", b"}", b",", b":", b"=", b'"', b"'", b"\\",
    b'"\\ud800"', b'"\\u0000"', b'"\\u202e"', b"[[[[[[[[", b'{"a":', b"[null]", b'["a"]', b'{"a": 1}', b"(moving)",
    b"(left for another epoch)", b"-", b"~", b"~nobody/", b"/", b"..", b"*", b"signed ", b"2020-02-30",
    b"1979-05-27T07:32:00Z",
)  # fmt: skip
