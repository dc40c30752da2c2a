"""A server that scores stored images by id.

python examples/serve.py                                      makes a small store, asks itself once, and ends
python examples/serve.py --store sqlite:///x.db --port 8000   serves until it is interrupted
curl -d '{"ids": ["..."]}' http://127.0.0.1:8000/score

Requests come in many threads; one client fetches for all of them, over connections that stay open, and decodes in
threads of its own. An id that is not there, or whose image is damaged, has an error instead of a score.
"""

import argparse
import io
import json
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from headrace.store import Client, Fetching, Lost, Record, Schema, open_writable


def decode(payload):
    try:
        with Image.open(io.BytesIO(payload)) as image:
            pixels = np.asarray(image.convert("RGB").resize((32, 32)), np.float32)
    except OSError:
        return None
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255


def make_model():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 8, 5), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 3)).eval()


class Scorer:
    def __init__(self, url):
        self.client = Client(url, decode=decode, fetching=Fetching(lost=True, in_flight=64))
        self.model = make_model()

    def score(self, ids):
        scores, found = {}, []
        for sample in self.client.fetch(ids):
            if isinstance(sample, Lost):
                scores[sample.key] = {"error": str(sample.error)}
            elif sample.data is None:
                scores[sample.key] = {"error": "this is no image"}
            else:
                found.append(sample)
        if found:
            with torch.inference_mode():
                outputs = self.model(torch.stack([sample.data for sample in found])).softmax(1)
            scores.update(
                {sample.key: {"scores": row.tolist()} for sample, row in zip(found, outputs, strict=True)},
            )
        return scores


class Handler(BaseHTTPRequestHandler):
    scorer = None

    def do_POST(self):
        try:
            ids = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["ids"]
            status, answer = 200, self.scorer.score([str(one) for one in ids])
        except (ValueError, LookupError, TypeError) as error:
            status, answer = 400, {"error": f'send {{"ids": [...]}}: {error}'}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def make_store(folder):
    store = open_writable(f"sqlite:///{folder}/images.db")
    store.create(Schema())
    random = np.random.default_rng(0)
    records = []
    for number in range(20):
        file = io.BytesIO()
        Image.fromarray(random.integers(0, 255, (48, 64, 3), np.uint8)).save(file, "JPEG")
        records.append(Record(f"image-{number:02}", file.getvalue(), number % 3, {}))
    with store.writer() as writer:
        writer.put(records)
    return store.name


def ask(address, ids):
    request = urllib.request.Request(f"http://{address}/score", json.dumps({"ids": ids}).encode())
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return json.load(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", help="the URL of a store of images")
    parser.add_argument("--port", type=int, help="serve there until interrupted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Handler.scorer = Scorer(options.store or make_store(Path(folder)))
        server = ThreadingHTTPServer(("127.0.0.1", options.port or 0), Handler)
        with server, Handler.scorer.client:
            address = "{}:{}".format(*server.server_address)
            print(f"serving on http://{address}/score")
            if options.port is not None:
                server.serve_forever()
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for name, answer in sorted(ask(address, ["image-03", "image-11", "image-99"]).items()):
                print(name, answer)
            server.shutdown()


if __name__ == "__main__":
    main()
