"""What PyPTO's cost model left on disk, read back: the compiled graph of tasks, and when each of them ran."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

CYCLES_PER_US = 1800
HUB = 4  # core type of a node that only joins dependencies: no core runs it

Node = tuple[int, int]  # batch and task number


class CostModelError(RuntimeError):
    """The cost model did not run, or left files that contradict each other: there is no figure to report."""


class Task(NamedTuple):
    """One task as the cost model ran it, in cycles from the call's start. rows: row stores of its scatters.

    core: number of the core; batch: which of the runtime's batches of iterations it belongs to; -1 rows for a hub.
    """

    node: Node
    core: int
    start: int
    end: int
    rows: tuple[int, ...]
    hub: bool

    @property
    def batch(self) -> int:
        return self.node[0]


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """The compiled graph. It does not depend on what the cost model charges.

    tasks: on cores, hubs not counted. edges: pairs of successive nodes, hubs included. chain_depth: tasks on the
    longest chain of dependent ones within a batch. batches: groups of iterations; between two of them all cores wait.
    operations: how often each kind of operation is executed, tasks times operations of their leaf function.
    successors: node -> those that wait for it. loads: how often tasks load from each of the kernel's parameters, by
    name; each load is charged, and is of one tile.
    """

    tasks: int
    edges: int
    chain_depth: int
    batches: int
    operations: Mapping[str, int]
    successors: Mapping[Node, tuple[Node, ...]]
    loads: Mapping[str, int]

    @property
    def scatters(self) -> int:
        """Executed scatter_update operations."""
        return self.operations.get("INDEX_OUTCAST", 0)


@dataclass(frozen=True, slots=True)
class Cost:
    """One call in PyPTO's cost model. Not measured: bytes that a scatter stores and HBM bandwidth are not charged."""

    graph: TaskGraph
    timeline: tuple[Task, ...]

    @property
    def cycles(self) -> int:
        """From the start of the first task on a core to the end of the last."""
        return self._end - min((task.start for task in self.timeline if not task.hub), default=0)

    @property
    def e2e_us(self) -> float:
        return self.cycles / CYCLES_PER_US

    @property
    def e2e_with_prologue_us(self) -> float:
        """From the call's start: what goes before the first task is counted."""
        return self._end / CYCLES_PER_US

    @property
    def busy_cores(self) -> int:
        return len({task.core for task in self.timeline if not task.hub})

    @property
    def _end(self) -> int:
        return max((task.end for task in self.timeline if not task.hub), default=0)

    def rows_on_busiest_core(self, most_rows: int) -> int:
        """Row stores of the core that has most; most_rows: valid rows that a single scatter can have."""
        stores: Counter[int] = Counter()
        for task in self.timeline:
            stores[task.core] += _stores(task, most_rows)
        return max(stores.values(), default=0)

    def repriced_us(self, price: int, most_rows: int) -> float:
        """E2E if every row store took ``price`` cycles more than the next to nothing that the cost model charges.

        The timeline is replayed: each task runs longer by price times its rows, where a scatter has at most
        ``most_rows`` (those of the call: a lone tail is not charged as a whole tile). A task starts when it did, later
        by as much as its predecessors or the batch before it end later, and not before the task in front of it on its
        core has ended and the shortest pause between two tasks of one core has passed. So stores hide behind a slow
        dispatch, as they would on a device. Rows of the busiest core times price, added to E2E, would charge a kernel
        that waits for its dispatch twice, and flatter the one it is compared with. Tasks stay on their cores.
        """
        predecessors: dict[Node, list[Node]] = {}
        for node, after in self.graph.successors.items():
            for successor in after:
                predecessors.setdefault(successor, []).append(node)
        before = {task.node: task for task in self.timeline}
        pause = self._shortest_pause()
        ends: dict[Node, int] = {}
        core_free: dict[int, int] = {}
        batch_ends: dict[int, tuple[int, int]] = {}
        for task in sorted(self.timeline, key=lambda task: (task.batch, task.start, task.end)):
            old, new = batch_ends.get(task.batch - 1, (0, 0))
            for node in predecessors.get(task.node, ()):
                old, new = max(old, before[node].end), max(new, ends[node])
            start = task.start + max(0, new - old)
            if not task.hub and task.core in core_free:
                start = max(start, core_free[task.core] + pause)
            end = start + task.end - task.start + price * _stores(task, most_rows)
            ends[task.node] = end
            old, new = batch_ends.get(task.batch, (0, 0))
            batch_ends[task.batch] = max(old, task.end), max(new, end)
            if not task.hub:
                core_free[task.core] = end
        last = max((ends[task.node] for task in self.timeline if not task.hub), default=0)
        return (last - (self._end - self.cycles)) / CYCLES_PER_US

    def _shortest_pause(self) -> int:
        pauses = []
        last: dict[int, Task] = {}
        for task in sorted((task for task in self.timeline if not task.hub), key=lambda task: task.start):
            if task.core in last:
                pauses.append(task.start - last[task.core].end)
            last[task.core] = task
        return min(pauses, default=0)


def _stores(task: Task, most_rows: int) -> int:
    return sum(min(rows, most_rows) for rows in task.rows)


def read_cost(folder: Path) -> Cost:
    """The cost of the one call whose output folder this is. A call that launched nothing has no tasks.

    Raises CostModelError where a file is missing, a task's code is unknown, or the timeline is not that of the graph.
    """
    try:
        cores = json.loads((folder / "CostModelSimulationOutput" / "_simulate.swim.json").read_text())
        functions = json.loads((folder / "program.json").read_text())["functions"]
    except (OSError, ValueError, KeyError) as error:
        raise CostModelError(f"the cost model's output is not complete: {error}.") from error
    topology = folder / "dyn_topo.txt"
    nodes = {}
    if topology.exists():
        with open(topology, newline="") as file:
            nodes = {(int(row["seqNo"]), int(row["taskId"])): row for row in _rows(file)}
    timed = {
        (task["seqNo"], task["taskId"]): (core["blockIdx"], task["execStart"], task["execEnd"])
        for core in cores
        for task in core["tasks"]
    }
    if timed.keys() != nodes.keys():
        raise CostModelError(
            f"the compiled graph has {len(nodes)} tasks and the cost model's timeline {len(timed)}: they must agree."
        )
    code = {function["hash"]: _Leaf.read(function) for function in functions if function["graphtype"] == 3}
    operations: Counter[str] = Counter()
    loads: Counter[str] = Counter()
    timeline = []
    for node, row in nodes.items():
        core, start, end = timed[node]
        hub = int(row["coreType"]) == HUB
        if not hub and row["leafHash"] not in code:
            raise CostModelError(f"task {node} runs function {row['leafHash']}, which the program does not have.")
        leaf = _Leaf(Counter(), (), Counter()) if hub else code[row["leafHash"]]
        operations.update(leaf.operations)
        loads.update(leaf.loads)
        timeline.append(Task(node, core, start, end, leaf.scatter_rows, hub))
    successors = {node: row["after"] for node, row in nodes.items()}
    real = {task.node for task in timeline if not task.hub}
    graph = TaskGraph(
        tasks=len(real),
        edges=sum(map(len, successors.values())),
        chain_depth=_chain_depth(successors, real),
        batches=len({batch for batch, _ in nodes}),
        operations=operations,
        successors=successors,
        loads=loads,
    )
    return Cost(graph, tuple(timeline))


class _Leaf(NamedTuple):
    """Code of a task. operations: how many of each kind; scatter_rows: rows of each scatter's tile; loads: by name."""

    operations: Counter[str]
    scatter_rows: tuple[int, ...]
    loads: Counter[str]

    @classmethod
    def read(cls, function: dict) -> _Leaf:
        shapes = {tensor["magic"]: tensor["shape"] for tensor in function["tensors"]}
        memories = {tensor["magic"]: tensor["rawtensor"] for tensor in function["tensors"]}
        names = {memory["rawmagic"]: memory.get("symbol", "") for memory in function["rawtensors"]}
        scatters = [operation for operation in function["operations"] if operation["opcode"] == "INDEX_OUTCAST"]
        # operands: source tile, index, cache
        rows = tuple(shapes[scatter["ioperands"][0]][-2] for scatter in scatters)
        loads = Counter(
            names[memories[operation["ioperands"][0]]]
            for operation in function["operations"]
            if operation["opcode"] == "COPY_IN"
        )
        return cls(Counter(operation["opcode"] for operation in function["operations"]), rows, loads)


def _rows(file):
    """Rows of the topology file; the last named column is followed by one column for each successor."""
    for row in csv.DictReader(file, restkey="more"):
        after = [row["successors"], *row.get("more", ())]
        row["after"] = tuple((int(row["seqNo"]), int(name)) for name in after if name)
        yield row


def _chain_depth(successors: Mapping[Node, tuple[Node, ...]], real: set[Node]) -> int:
    """Most real tasks on one path. Nodes leave in topological order."""
    waits: Counter[Node] = Counter(node for after in successors.values() for node in after)
    ready = [node for node in successors if not waits[node]]
    depth = {node: int(node in real) for node in successors}
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        for after in successors[node]:
            depth[after] = max(depth[after], depth[node] + (after in real))
            waits[after] -= 1
            if not waits[after]:
                ready.append(after)
    if done != len(successors):
        raise CostModelError("the tasks wait for each other in a circle.")
    return max(depth.values(), default=0)
