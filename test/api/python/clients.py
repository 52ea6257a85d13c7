"""
Runs the clients for Python against models of several providers: `clients.py BASE_URL KEY MODELS`, where MODELS is JSON, the
names of a model, and of one that fails, by provider. Prints one JSON line for each client, provider and feature, with the
problem or null.
"""

import base64
import json
import os
import sys
import traceback

import anthropic
import openai
from google import genai
from google.genai import errors as google_errors
from google.genai import types

# Otherwise litellm fetches its table of prices, and prints where to ask for help.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm  # noqa: E402

litellm.suppress_debug_info = True

base_url, key, given = sys.argv[1:]
models = json.loads(given)
origin = base_url.removesuffix("/v1")
pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
question = "Ask weather and time for Paris."
schema = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tool_names = ["weather", "time"]


def is_city(text):
    value = json.loads(text)
    assert isinstance(value["city"], str) and isinstance(value["people"], int), text


def is_failure(error, status):
    assert status == 400 and "Simulated failure" in str(error), f"{status}: {error}"


def same(whole, streamed):
    assert whole != "" and whole == streamed, f"{whole!r} is not {streamed!r}"


def both(names):
    assert names == tool_names, names


def in_chat(create):
    """The features of a client that speaks chat completions. `create` takes what OpenAI's takes."""
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in tool_names]

    def said(model, content="Say hello.", **more):
        return create(model=model, messages=[{"role": "user", "content": content}], **more)

    def text(model):
        chunks = said(model, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        same(said(model).choices[0].message.content, streamed)

    def image(model):
        shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}}
        assert said(model, [{"type": "text", "text": "What is it?"}, shown]).choices[0].message.content

    def structured(model):
        form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
        is_city(said(model, response_format=form).choices[0].message.content)

    def loop(model):
        messages = [{"role": "user", "content": question}]
        for city in ["Paris", "Rome"]:
            message = create(model=model, messages=messages, tools=tools).choices[0].message
            both([call.function.name for call in message.tool_calls])
            messages.append(message.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in message.tool_calls]
            message = create(model=model, messages=messages, tools=tools).choices[0].message
            assert message.content
            messages += [message.model_dump(exclude_none=True), {"role": "user", "content": question}]

    return {"text and stream": text, "images": image, "structured output": structured, "tools": loop}


def in_responses(create):
    tools = [{"type": "function", "name": name, "parameters": parameters, "strict": False} for name in tool_names]

    def text(model):
        streamed = ""
        for event in create(model=model, input="Say hello.", stream=True):
            streamed += event.delta if event.type == "response.output_text.delta" else ""
        same(create(model=model, input="Say hello.").output_text, streamed)

    def image(model):
        shown = {"type": "input_image", "image_url": f"data:image/png;base64,{pixel}"}
        content = [{"type": "input_text", "text": "What is it?"}, shown]
        assert create(model=model, input=[{"role": "user", "content": content}]).output_text

    def structured(model):
        form = {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": schema}}
        is_city(create(model=model, input="A city.", text=form).output_text)

    def loop(model):
        items = [{"role": "user", "content": question}]
        for city in ["Paris", "Rome"]:
            answer = create(model=model, input=items, tools=tools, store=False)
            calls = [item for item in answer.output if item.type == "function_call"]
            both([call.name for call in calls])
            items += [item.model_dump(exclude_none=True) for item in answer.output]
            items += [{"type": "function_call_output", "call_id": call.call_id, "output": "fine"} for call in calls]
            answer = create(model=model, input=items, tools=tools, store=False)
            assert answer.output_text
            items += [item.model_dump(exclude_none=True) for item in answer.output]
            items.append({"role": "user", "content": question})

    return {"text and stream": text, "images": image, "structured output": structured, "tools": loop}


def failing(create, error_type, status=lambda error: error.status_code, **named):
    def fails(model):
        try:
            create(model=model, **named)
        except error_type as error:
            return is_failure(error, status(error))
        raise AssertionError("it was answered")

    return fails


def of_openai():
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
    chat, responses = client.chat.completions.create, client.responses.create
    hello = [{"role": "user", "content": "Hi"}]
    yield "openai, chat completions", in_chat(chat) | {"errors": failing(chat, openai.BadRequestError, messages=hello)}
    yield "openai, Responses", in_responses(responses) | {"errors": failing(responses, openai.BadRequestError, input="Hi")}


def of_litellm():
    def create_with(method, prefix, address):
        def create(model, **more):
            return method(model=f"{prefix}/{model}", api_base=address, api_key=key, num_retries=0, **more)

        return create

    hello = [{"role": "user", "content": "Hi"}]
    chat = create_with(litellm.completion, "openai", base_url)
    messages = create_with(litellm.completion, "anthropic", origin)
    for name, create in [("litellm, chat completions", chat), ("litellm, Messages", messages)]:
        yield name, in_chat(create) | {"errors": failing(create, litellm.BadRequestError, messages=hello)}


def of_anthropic():
    client = anthropic.Anthropic(base_url=origin, api_key=key, max_retries=0)
    tools = [{"name": name, "input_schema": parameters} for name in tool_names]

    def create(model, messages="Say hello.", **more):
        asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return client.messages.create(model=model, max_tokens=500, messages=asked, **more)

    def text(model):
        hello = [{"role": "user", "content": "Say hello."}]
        with client.messages.stream(model=model, max_tokens=500, messages=hello) as stream:
            streamed = "".join(stream.text_stream)
        same(create(model).content[0].text, streamed)

    def image(model):
        shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": pixel}}
        content = [{"type": "text", "text": "What is it?"}, shown]
        assert create(model, [{"role": "user", "content": content}]).content[0].text

    def structured(model):
        form = {"format": {"type": "json_schema", "schema": schema}}
        is_city(create(model, output_config=form).content[0].text)

    def loop(model):
        messages = [{"role": "user", "content": question}]
        for city in ["Paris", "Rome"]:
            message = create(model, messages, tools=tools)
            calls = [block for block in message.content if block.type == "tool_use"]
            both([call.name for call in calls])
            messages.append({"role": "assistant", "content": message.content})
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "fine"} for call in calls]
            messages.append({"role": "user", "content": results})
            message = create(model, messages, tools=tools)
            assert message.stop_reason == "end_turn", message
            messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": question}]

    def count(model):
        asked = [{"role": "user", "content": "Why is the sky blue?"}]
        assert client.messages.count_tokens(model=model, messages=asked).input_tokens > 0

    yield "anthropic", {
        "text and stream": text,
        "images": image,
        "structured output": structured,
        "tools": loop,
        "token count": count,
        "errors": failing(create, anthropic.BadRequestError),
    }


def of_google():
    client = genai.Client(api_key=key, http_options=types.HttpOptions(base_url=origin))
    declared = [types.FunctionDeclaration(name=name, parameters_json_schema=parameters) for name in tool_names]

    def create(model, contents="Say hello.", **config):
        return client.models.generate_content(model=model, contents=contents, config=config)

    def text(model):
        chunks = client.models.generate_content_stream(model=model, contents="Say hello.")
        same(create(model).text, "".join(chunk.text or "" for chunk in chunks))

    def image(model):
        shown = types.Part.from_bytes(data=base64.b64decode(pixel), mime_type="image/png")
        assert create(model, ["What is it?", shown]).text

    def structured(model):
        is_city(create(model, response_mime_type="application/json", response_json_schema=schema).text)

    def loop(model):
        tools = [types.Tool(function_declarations=declared)]
        contents = [types.UserContent(question)]
        for city in ["Paris", "Rome"]:
            answer = create(model, contents, tools=tools)
            both([call.name for call in answer.function_calls])
            results = [
                types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response={"result": "fine"}))
                for call in answer.function_calls
            ]
            contents += [answer.candidates[0].content, types.UserContent(results)]
            answer = create(model, contents, tools=tools)
            assert answer.text
            contents += [answer.candidates[0].content, types.UserContent(question)]

    def count(model):
        assert client.models.count_tokens(model=model, contents="Why is the sky blue?").total_tokens > 0

    yield "google-genai", {
        "text and stream": text,
        "images": image,
        "structured output": structured,
        "tools": loop,
        "token count": count,
        "errors": failing(create, google_errors.APIError, status=lambda error: error.code),
    }


for clients in [of_openai, of_litellm, of_anthropic, of_google]:
    for client, features in clients():
        for provider, (model, failing_model) in models.items():
            for feature, use in features.items():
                problem = None
                try:
                    # Reasoning has to come back within a loop of tool calls.
                    use({"errors": failing_model, "tools": f"{model}__think"}.get(feature, model))
                except Exception as error:
                    place = traceback.extract_tb(error.__traceback__)[1].lineno
                    problem = f"line {place}: {type(error).__name__}: {error}"[:600]
                print(json.dumps({"client": client, "provider": provider, "feature": feature, "problem": problem}))
