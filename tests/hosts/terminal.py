"""terminal.py SERVER TOKEN COMMAND: what COMMAND prints in a new terminal of a notebook server.

As the browser does it: the terminal is made by the server's API, and its text comes by a WebSocket.
"""

import asyncio
import json
import sys

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect


async def main(server, token, command):
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    made = await AsyncHTTPClient().fetch(f"{server}/api/terminals", method="POST", headers=headers, body="{}")
    name = json.loads(made.body)["name"]
    address = server.replace("http", "ws", 1) + f"/terminals/websocket/{name}"
    terminal = await websocket_connect(HTTPRequest(address, headers=headers))
    await terminal.write_message(json.dumps(["stdin", f"{command}; exit\r"]))
    while (message := await terminal.read_message()) is not None:
        kind, *text = json.loads(message)
        if kind == "stdout":
            print(text[0], end="")
        if kind == "disconnect":
            return


asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 50))
