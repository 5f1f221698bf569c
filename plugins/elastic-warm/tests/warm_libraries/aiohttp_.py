"""A page from a server in the same process, with asyncio."""

import asyncio

import probe

import aiohttp
import aiohttp.web

probe.imported("aiohttp")


async def page(request):
    return aiohttp.web.json_response({"size": 3})


async def main():
    application = aiohttp.web.Application()
    application.router.add_get("/", page)
    runner = aiohttp.web.AppRunner(application)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}") as response:
        probe.result("page", await response.json())
    await runner.cleanup()


asyncio.run(main())
probe.end()
