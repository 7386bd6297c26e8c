#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tiny local web server for liveness tests: static files, a JSON tick endpoint, a
WebSocket echo that records each page's heartbeat, and /state to read it all back.
Standard library only.   usage: server.py [PORT]"""
import asyncio, base64, hashlib, json, os, struct, sys, time

ROOT = os.path.dirname(os.path.realpath(__file__))
STATE = {"started": time.time(), "ticks": 0, "pages": {}}
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".txt": "text/plain"}


async def ws_frames(r):
    """Yield (opcode, payload) of the client's (masked) frames."""
    while True:
        b0, b1 = await r.readexactly(2)
        n = b1 & 127
        if n == 126:
            n = struct.unpack(">H", await r.readexactly(2))[0]
        elif n == 127:
            n = struct.unpack(">Q", await r.readexactly(8))[0]
        mask = await r.readexactly(4) if b1 & 128 else b"\0\0\0\0"
        data = bytearray(await r.readexactly(n))
        for i in range(n):
            data[i] ^= mask[i & 3]
        yield b0 & 15, bytes(data)


def ws_pack(data, op=1):
    n = len(data)
    head = bytes([128 | op, n]) if n < 126 else bytes([128 | op, 126]) + struct.pack(">H", n)
    return head + data


async def websocket(r, w, headers):
    key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    acc = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    w.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
             f"Sec-WebSocket-Accept: {acc}\r\n\r\n").encode())
    async for op, data in ws_frames(r):
        if op == 8:
            break
        if op == 9:
            w.write(ws_pack(data, 10)); continue
        if op not in (1, 2):
            continue
        m = json.loads(data)
        p = STATE["pages"].setdefault(m.get("page", "?"), {"beats": 0})
        p["beats"] += 1
        p.update(m, at=time.time())
        w.write(ws_pack(json.dumps({"echo": m.get("n"), "beats": p["beats"]}).encode()))
        await w.drain()


async def handle(r, w):
    try:
        while True:
            head = (await r.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
            path = head[0].split(" ")[1].split("?")[0]
            headers = {k.lower(): v.strip() for k, _, v in (l.partition(":") for l in head[1:] if l)}
            n = int(headers.get("content-length", 0) or 0)
            if n:
                await r.readexactly(n)
            if headers.get("upgrade", "").lower() == "websocket":
                return await websocket(r, w, headers)
            code, ctype, body = 200, "application/json", b"{}"
            if path == "/tick":
                STATE["ticks"] += 1
                body = json.dumps({"tick": STATE["ticks"]}).encode()
            elif path == "/state":
                body = json.dumps(STATE).encode()
            else:
                f = os.path.join(ROOT, path.lstrip("/") or "page.html")
                ext = os.path.splitext(f)[1]
                if os.path.realpath(f).startswith(ROOT + os.sep) and os.path.isfile(f) and ext in TYPES:
                    ctype, body = TYPES[ext], open(f, "rb").read()
                else:
                    code, ctype, body = 404, "text/plain", b"not here\n"
            w.write((f"HTTP/1.1 {code} OK\r\nContent-Type: {ctype}\r\nContent-Length: {len(body)}\r\n"
                     "Cache-Control: no-store\r\n\r\n").encode() + body)
            await w.drain()
    except (asyncio.IncompleteReadError, ConnectionError, IndexError, KeyError):
        pass
    finally:
        w.close()


async def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    srv = await asyncio.start_server(handle, "127.0.0.1", port)
    async with srv:
        await srv.serve_forever()

asyncio.run(main())
