"""A server and a client in one process."""

from concurrent.futures import ThreadPoolExecutor

import probe

import grpc

probe.imported("grpc")


def answer(request, context):
    return request[::-1]


server = grpc.server(ThreadPoolExecutor(2))
handlers = {"Turn": grpc.unary_unary_rpc_method_handler(answer)}
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("words", handlers),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    call = channel.unary_unary("/words/Turn")
    probe.result("answers", [call(word.encode(), timeout=30).decode() for word in ("one", "two")])
server.stop(None).wait()
probe.end()
