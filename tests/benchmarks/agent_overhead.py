"""What watching costs: a GPT of 10M parameters on the CPU, with the agent, without it, and with an ``.item()`` hook.

python tests/benchmarks/agent_overhead.py [--rounds 10] [--steps 4]
The three take turns, so that a noisy machine is noisy for all of them; each number is a median over steps. CPU time
is that of the whole process, so the agent's sender and the collector that swallows its batches are in it; wall time
says something only on a machine that does nothing else. Exit status 1 where both of the agent's ratios are above 1.03.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn

import gradcanary

WIDTH, DEPTH, VOCABULARY, LENGTH, BATCH = 256, 12, 512, 128, 4
TARGET = 1.03
REPLY = (
    b'{"status":"stored","next_seq":0,"limits":{"max_body":4194304,"max_points":2000000,"max_layers":20000},'
    b'"incidents":[]}'
)


class Gpt(nn.Module):
    """12 blocks of width 256: 148 tensors, 9.8M parameters."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.TransformerEncoder(block, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.head(self.blocks(self.tokens(tokens) + self.positions, mask=mask, is_causal=True))


class Loop:
    """A plain training loop."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Gpt()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self) -> tuple[float, float]:
        """Return the seconds that one optimizer step takes, of the wall clock and of the CPU."""
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
        began, used = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        logits = self.model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self.optimizer.step()
        return time.perf_counter() - began, time.process_time() - used


@contextmanager
def collector() -> Iterator[str]:
    """Serve a collector that takes everything and keeps nothing: the agent alone is measured."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(REPLY)))
            self.end_headers()
            self.wfile.write(REPLY)

        do_PUT = do_POST = answer  # noqa: N815 -- the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@contextmanager
def item_hooks(loop: Loop) -> Iterator[None]:
    """Read the largest gradient of each parameter the way it is first written down."""
    read: dict[str, float] = {}

    def hook(name: str) -> Callable[[torch.Tensor], None]:
        def store(parameter: torch.Tensor) -> None:
            read[name] = parameter.grad.abs().max().item()
            read[name + ".norm"] = parameter.grad.norm().item()

        return store

    handles = [each.register_post_accumulate_grad_hook(hook(name)) for name, each in loop.model.named_parameters()]
    yield
    for handle in handles:
        handle.remove()


Ways = dict[str, Callable[[], AbstractContextManager[object]]]


def measure(rounds: int, steps: int, ways: Ways, loop: Loop) -> dict[str, list[tuple[float, float]]]:
    """Return seconds of each step of each way; the first step of a turn warms up."""
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(rounds):
        order = list(ways) if turn % 2 else list(reversed(ways))
        for way in order:
            with ways[way]():
                loop.step()
                times[way] += [loop.step() for _ in range(steps)]
    return times


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    loop = Loop()
    tensors = list(loop.model.parameters())
    print(
        f"{sum(map(torch.numel, tensors)):,} parameters in {len(tensors)} tensors; torch {torch.__version__}, ", end=""
    )
    print(f"{torch.get_num_threads()} thread(s); {arguments.rounds} x {arguments.steps} steps each")
    with collector() as url:
        ways: Ways = {
            "nothing": nullcontext,
            "gradcanary, every=1": lambda: gradcanary.watch(loop.model, loop.optimizer, url=url, run="cost", every=1),
            ".item() hooks": lambda: item_hooks(loop),
        }
        times = measure(arguments.rounds, arguments.steps, ways, loop)
    medians = {way: [statistics.median(clock) for clock in zip(*each, strict=True)] for way, each in times.items()}
    plain = medians["nothing"]
    ratios = {way: [mine / theirs for mine, theirs in zip(each, plain, strict=True)] for way, each in medians.items()}
    print("| watched by | wall per step | ratio | CPU per step | ratio |\n|---|---|---|---|---|")
    for way, (wall, cpu) in medians.items():
        print(f"| {way} | {wall * 1e3:.1f} ms | {ratios[way][0]:.3f} | {cpu * 1e3:.1f} ms | {ratios[way][1]:.3f} |")
    return int(min(ratios["gradcanary, every=1"]) > TARGET)


if __name__ == "__main__":
    raise SystemExit(main())
