"""Calls the methods of a client by their names, and notes how each of them went."""

import asyncio
import inspect
import time


class EndOfArea(Exception):
    """A method went wrong, and what the area does next needs its answer."""


def methods_of(client):
    """The methods below a client, by their names as they are called: `admin.users.list`."""
    found = {}

    def walk(resource, place):
        for name in dir(resource):
            member = None if name.startswith("_") else getattr(resource, name)
            if inspect.ismethod(member):
                # Those of the client itself are of no area.
                found.update({f"{place}{name}": member} if place else {})
            elif type(member).__module__.startswith("portkey_ai.api_resources.") and not isinstance(member, type(client)):
                if hasattr(member, "__dict__"):
                    walk(member, f"{place}{name}.")

    walk(client, "")
    return found


class Including:
    """Stands for a list that has an item like this one, whatever else it has."""

    def __init__(self, item):
        self.item = item


def difference(expected, given, place="the answer"):
    """What an answer lacks of the expected members, or None. A type stands for any value of it."""
    given = plain(given)
    if isinstance(expected, Including):
        items = list(given.values()) if isinstance(given, dict) else given
        if isinstance(items, list) and any(difference(expected.item, item) is None for item in items):
            return None
        return f"{place} has no item like {expected.item!r}, but is {shortened(given)}"
    if isinstance(expected, dict) and isinstance(given, dict):
        differences = (difference(value, given.get(name), f"{place}.{name}") for name, value in expected.items())
        return next((found for found in differences if found is not None), None)
    if isinstance(expected, type):
        return None if isinstance(given, expected) else f"{place} is no {expected.__name__}, but {shortened(given)}"
    return None if expected == given else f"{place} is not {expected!r}, but {shortened(given)}"


def plain(value):
    """The members of a model of pydantic, also those that it has beyond its fields."""
    return value.model_dump() if hasattr(value, "model_dump") else value


def shortened(value):
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:500]}…"


class Client:
    """A client whose methods are called by name: `call("labels.list", answers={"object": "list"})`."""

    def __init__(self, client):
        self.name = type(client).__name__
        self.methods = methods_of(client)
        self.outcomes = {}
        self.loop = asyncio.new_event_loop()

    def call(self, method, *given, answers=None, refused=None, **named):
        """
        Calls a method and returns its plain answer, which must have the members of `answers`; or, with `refused`, be an
        error of this status. Raises EndOfArea if it is otherwise.
        """
        try:
            answer = plain(self.settled(self.methods[method](*given, **named)))
            problem = None if refused is None else f"it was answered instead of refused: {shortened(answer)}"
        except Exception as error:
            answer = None
            is_expected = refused is not None and getattr(error, "status_code", None) == refused
            problem = None if is_expected else f"{type(error).__name__}: {error}"
        if problem is None and answers is not None:
            problem = difference(answers, answer)
        self.note(method, problem)
        return answer

    def fails_itself(self, method, *given, saying, **named):
        """Calls a method that cannot read the right answer. It is a problem if it can, so that it is noticed."""
        try:
            self.settled(self.methods[method](*given, **named))
            problem = "it is answered now: check the answer instead"
        except TypeError as error:
            problem = None if saying in str(error) else f"TypeError: {error}"
        self.note(method, problem)

    def attempt(self, method, *given, **named):
        """Calls a method whose answer nothing else of the area needs."""
        try:
            self.call(method, *given, **named)
        except EndOfArea:
            pass

    def check(self, method, given, expected):
        """Compares what came of a method beyond its answer. Raises EndOfArea if it is otherwise."""
        self.note(method, difference(expected, given))

    def note(self, method, problem):
        self.outcomes[method] = self.outcomes.get(method) or problem
        if problem is not None:
            raise EndOfArea(f"{method}: {problem}")

    def settled(self, value):
        return self.loop.run_until_complete(value) if inspect.isawaitable(value) else value

    def items(self, stream):
        """Every item of a stream that a method answered with, or of one that is first to be entered."""

        async def read():
            if hasattr(stream, "__aiter__"):
                return [item async for item in stream]
            async with stream as entered:
                return [item async for item in entered]

        if hasattr(stream, "__aiter__") or hasattr(stream, "__aenter__"):
            return self.settled(read())
        if hasattr(stream, "__iter__"):
            return list(stream)
        with stream as entered:
            return list(entered)

    def until(self, is_done, method, *given, **named):
        """Calls a method until its answer is as wished. Raises EndOfArea after half a minute."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            answer = self.call(method, *given, **named)
            if is_done(answer):
                return answer
            time.sleep(0.02)
        self.note(method, f"the wished answer did not come, but {shortened(answer)}")
