"""`ostiary demo procurement`: a question, its answer after every replica was replaced, a task, and what is refused.

Three replicas, no sessions, no affinity. Truth is read from the documents and from what arrived at the replicas.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from gateway.demo.exchange import Answer
from gateway.demo.house import Ports
from gateway.demo.procurement.buyer import PROCUREMENT, Buyer
from gateway.demo.screen import Screen
from gateway.demo.stack import Stack

REPLICAS = 3
SHORT_S = 2.0
"""How long a state lives in the last chapter, where it has to be too old."""


def small_and_large(buyer: Buyer) -> None:
    """49,999 goes through; 50,000 and 50,001 are asked about first."""
    screen = buyer.screen
    for total, asked in ((49_999, False), (50_000, True), (50_001, True)):
        number = buyer.draft("alice", "chairs", 1, total)
        answer = buyer.submit("alice", number, shown=total == 50_001)
        asks = answer.document["result"]["resultType"] == "input_required"
        screen.check(f"{total:,}: {'a question comes first' if asked else 'no question'}", asks is asked)
        state = buyer.state_of(number)
        screen.check(f"{total:,}: {'still a draft' if asked else 'submitted'}", (state == "draft") is asked, state)
        if asks:
            declined = buyer.submit(
                "alice", number, step="alice says no", **buyer.question(number, answer).answer(False)
            )
            screen.check("a no leaves it a draft", buyer.state_of(number) == "draft", declined.text)


def replaced_in_between(buyer: Buyer) -> None:
    """Every replica is replaced between the question and its answer; every tampering with the state is refused."""
    screen = buyer.screen
    number, other = (buyer.draft("alice", title, 60, 1_000) for title in ("desks", "lamps"))
    question = buyer.question(number, buyer.submit("alice", number))
    buyer.stack.replace_replicas()
    screen.say("All three replicas have ended; three new processes have taken their places.")
    middle = len(question.state) // 2
    turned = "A" if question.state[middle] != "A" else "B"
    tampered = question.state[:middle] + turned + question.state[middle + 1 :]
    reached = buyer.reached()
    for what, person, document, state in (
        ("one character changed", "alice", number, tampered),
        ("another user", "bob", number, question.state),
        ("another document", "alice", other, question.state),
    ):
        answer = buyer.submit(person, document, step=f"tampering: {what}", **question.answer(True, state=state))
        screen.check(f"{what}: 400, -32602", (answer.status, answer.code) == (400, -32602), answer.text)
    screen.check("no replica heard of any of it", buyer.reached() == reached, buyer.reached() - reached)
    drafts = (buyer.state_of(number), buyer.state_of(other))
    screen.check("both requisitions are still drafts", drafts == ("draft", "draft"), drafts)
    answer = buyer.submit("alice", number, step="alice confirms", shown=True, **question.answer(True))
    screen.check("the answer of before is good: submitted", buyer.state_of(number) == "submitted", answer.text)
    again = buyer.submit("alice", number, step="alice confirms again", **question.answer(True))
    screen.check("once", bool(again.document["result"].get("isError")), again.text)


def next_day(buyer: Buyer) -> None:
    """Everything is stopped and started again; another person goes on, who holds the number and nothing else."""
    screen = buyer.screen
    number = buyer.draft("alice", "monitors", 80, 1_000)
    buyer.submit("alice", number)
    buyer.stack.replace_replicas()
    buyer.stack.restart_gateway()
    screen.say(f"Gateway and replicas were stopped and started again. Bob knows one thing: the number {number}.")
    found = buyer.call(f"bob looks at {number}", "bob", "get_requisition", {"number": number}).structured
    screen.check("he finds the draft", (found.get("title"), found.get("state")) == ("monitors", "draft"), found)
    question = buyer.question(number, buyer.submit("bob", number))
    buyer.submit("bob", number, step="bob confirms", **question.answer(True))
    screen.check("submitted, by him", buyer.state_of(number) == "submitted", buyer.state_of(number))


def said(answer: Answer) -> tuple[int, object, object]:
    """What a refused caller learns: all but the ids of the request and of the decision."""
    error = answer.document["error"]
    return answer.status, error["code"], error["message"]


def three_way_match(buyer: Buyer) -> None:
    """Long work as a task: created at once, asked after at whichever replica, its replicas replaced on the way."""
    screen = buyer.screen
    began = time.monotonic()
    created = buyer.call("alice asks for a match", "alice", "match_invoice", {"invoice": "INV-77"}, shown=True)
    took_s = time.monotonic() - began
    task = created.document["result"]
    screen.check("the answer is a task", task.get("resultType") == "task", created.text)
    screen.check("at once, not after the work", task.get("status") == "working", f"{took_s:.2f} s")
    handle = str(task["taskId"])
    reached = len(buyer.stack.books.arrivals("tasks/get"))
    stolen = buyer.send("bob asks after alice's task", buyer.ask("bob", "tasks/get", {"taskId": handle}))
    guessed = buyer.send("bob guesses an id", buyer.ask("bob", "tasks/get", {"taskId": "match-1"}))
    same = stolen.code != 0 and said(stolen) == said(guessed)
    screen.check("alice's task looks to bob like one that does not exist", same, (stolen.text, guessed.text))
    untouched = len(buyer.stack.books.arrivals("tasks/get")) == reached
    screen.check("the server, which checks no ownership, heard of neither", untouched)
    buyer.stack.replace_replicas()
    screen.say("All replicas were replaced while it ran; the new ones carry on from what is on disk.")
    deadline = time.monotonic() + 30
    while task.get("status") == "working" and time.monotonic() < deadline:
        time.sleep(0.25)
        asked = buyer.send("alice asks after her task", buyer.ask("alice", "tasks/get", {"taskId": handle}))
        task = asked.document.get("result", {})
    screen.check("completed", task.get("status") == "completed", task)
    found = task.get("result", {}).get("structuredContent", {})
    screen.check("the ids are the caller's own", task.get("taskId") == handle, task.get("taskId"))
    screen.check("three findings: two of quantity, one of price", len(found.get("findings", ())) == 3, found)
    screen.say(f"Worked at by {', '.join(found.get('worked_by', ()))}.")


def too_late(buyer: Buyer) -> None:
    """An answer that comes after the state's time is refused. The gateway was restarted with a short one."""
    screen = buyer.screen
    buyer.stack.environment = {"OSTIARY_SEALS__STATE_S": str(SHORT_S)}
    buyer.stack.restart_gateway()
    number = buyer.draft("alice", "lockers", 70, 1_000)
    question = buyer.question(number, buyer.submit("alice", number))
    time.sleep(SHORT_S + 0.5)
    reached = buyer.reached()
    answer = buyer.submit("alice", number, step="tampering: expired", **question.answer(True))
    screen.check("expired: 400, -32602", (answer.status, answer.code) == (400, -32602), answer.text)
    screen.check("no replica heard of it", buyer.reached() == reached, buyer.reached() - reached)
    screen.check("still a draft", buyer.state_of(number) == "draft", buyer.state_of(number))


def written_down(buyer: Buyer) -> None:
    """Who asked, answered and was refused: all of it is in the record, and the record is whole."""
    done = buyer.stack.run("audit", "verify", "--config", str(buyer.stack.house.config_file))
    buyer.screen.command("ostiary audit verify --config ostiary.yaml", done.stdout)
    buyer.screen.check("every chain is whole: exit 0", done.returncode == 0, done.stderr)


CHAPTERS: tuple[tuple[str, Callable[[Buyer], None]], ...] = (
    ("Small and large", small_and_large),
    ("Replaced in between", replaced_in_between),
    ("Next day", next_day),
    ("Three-way match", three_way_match),
    ("Too late", too_late),
    ("Written down", written_down),
)


def tell() -> int:
    """Run the story -> exit code: 0 only if every chapter behaved. Raises `StackFailed`."""
    screen = Screen(sys.stdout)
    with Stack(ports=Ports.free(REPLICAS), place=PROCUREMENT) as stack:
        screen.title(
            " A requisition, a question, and replicas that come and go ",
            f"Three replicas of a procurement server behind the gateway at {stack.house.public_url}, MCP 2026-07-28.",
        )
        buyer = Buyer(stack, screen)
        for number, (title, chapter) in enumerate(CHAPTERS, start=1):
            screen.stop(number, len(CHAPTERS), title, chapter.__doc__ or "")
            chapter(buyer)
        screen.title(" Which replica served what ", "A prime marks a process that took a place after a replacement.")
        screen.report(buyer.served)
    screen.title(f" {len(screen.failures)} things did not behave " if screen.failures else " Everything behaved. ")
    return 1 if screen.failures else 0
