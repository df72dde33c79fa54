"""Why results are numpy: tensors that ended workers had put into a queue are lost, and packed results of the same are not.

Checks the failure itself, in real spawned processes, so that it is noticed when torch no longer has it. Not checked: a whole
collection (tests/study).
"""

from __future__ import annotations

import json

import pytest
from tests.policies.conftest import Program

WORKERS = 2
TENSORS = 20  # of a worker and kind; their handles fit into the queue's pipe, so that it may end before anybody reads

# Each worker puts results of three kinds, each into a queue, and ends; only then does the parent look what is there.
PROGRAM = """
import json, multiprocessing, sys
import numpy as np
import torch
import torch.multiprocessing
from trialplane.policies import transport
from trialplane.worker.collect import segments

FOLDER = sys.argv[0].rpartition("/")[0]

def content(worker, number):
    return torch.full((8, 8), float(100 * worker + number))

def tensors(worker, number, writer):
    return content(worker, number)

def arrays(worker, number, writer):
    return content(worker, number).numpy()

def packed(worker, number, writer):
    return writer.write({"state": content(worker, number)})[0]

KINDS = (tensors, arrays, packed)

def work(queues, worker):
    writer = segments.Writer(FOLDER)
    for kind, queue in zip(KINDS, queues):
        for number in range(TENSORS):
            queue.put((worker, number, kind(worker, number, writer)))

def arrived(kind, queue):
    whole, lost = 0, set()
    for _ in range(WORKERS * TENSORS):
        try:
            worker, number, value = queue.get(timeout=300)
        except OSError as error:  # ConnectionRefusedError, ConnectionResetError or FileNotFoundError, as it happens
            lost.add(isinstance(error, (ConnectionError, FileNotFoundError)))
            continue
        if kind is packed:
            value = transport.unpack(segments.read(value))["state"]
        whole += np.array_equal(value, content(worker, number).numpy())
    return whole, sorted(lost)

if __name__ == "__main__":
    context = torch.multiprocessing.get_context("spawn")
    queues = [context.Queue() for _ in KINDS]
    workers = [context.Process(target=work, args=(queues, worker)) for worker in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(json.dumps({kind.__name__: arrived(kind, queue) for kind, queue in zip(KINDS, queues)}))
"""


@pytest.mark.slow
def test_tensors_of_workers_that_ended_are_lost_and_packed_results_are_not(program: Program) -> None:
    head = f"WORKERS, TENSORS = {WORKERS}, {TENSORS}\n"
    said = json.loads(program(head + PROGRAM, env={"OMP_NUM_THREADS": "1"}).splitlines()[-1])
    everything = WORKERS * TENSORS
    assert said == {"tensors": [0, [True]], "arrays": [everything, []], "packed": [everything, []]}
