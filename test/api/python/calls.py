"""Every method for calls, files, batches, fine-tuning, prompts, logs, feedback and analytics."""

import json
from datetime import datetime, timedelta, timezone

from kit import Including

model = "@simulator/sim-small"
messages = [{"role": "user", "content": "hello"}]


# The interface has bare arrays there, and the client takes every answer for an object. That of Node reads them.
of_lists = "must be a mapping, not list"


def jsonl(values):
    return "\n".join(json.dumps(value) for value in values).encode()


def chat(client, platform):
    call = client.call
    answer = {"object": "chat.completion", "choices": Including({"message": {"role": "assistant"}})}
    call("chat.completions.create", model=model, messages=messages, answers=answer)
    call("chat.completions.parse", model=model, messages=messages, answers=answer)
    chunks = client.items(call("chat.completions.create", model=model, messages=messages, stream=True))
    client.check("chat.completions.create", chunks, Including({"object": "chat.completion.chunk"}))
    events = client.items(call("chat.completions.stream", model=model, messages=messages))
    client.check("chat.completions.stream", events, Including({"type": "content.done"}))
    call("beta.chat.completions.parse", model=model, messages=messages, answers=answer)
    chunks = client.items(call("beta.chat.completions.stream", model=model, messages=messages))
    client.check("beta.chat.completions.stream", [json.loads(chunk) for chunk in chunks], Including({"type": "chunk"}))

    call("completions.create", model=model, prompt="hello", answers={"object": "text_completion"})
    chunks = client.items(call("completions.create", model=model, prompt="hello", stream=True))
    client.check("completions.create", chunks, Including({"object": "text_completion"}))
    call("embeddings.create", model="@simulator/sim-embed", input="hello", answers={"data": Including({"index": 0})})


def models(client, platform):
    call = client.call
    model_id = call("models.list", answers={"object": "list"})["data"][0]["id"]
    call("models.retrieve", model_id, answers={"id": model_id, "object": "model"})
    # The simulator has no models to delete and says so, as OpenAI does for those of its own.
    call("models.delete", model, refused=404)


def forwarded(client, platform):
    call = client.call
    moderated = call("moderations.create", model="@simulator/omni-moderation-latest", input="hello")
    client.check("moderations.create", moderated, {"results": Including({"flagged": False})})
    call("images.generate", model="@simulator/gpt-image-1", prompt="A tree", answers={"data": Including({})})
    call("responses.create", model=model, input="hello", answers={"object": "response", "status": "completed"})


def files_and_batches(client, platform):
    call = client.call
    line = {"method": "POST", "url": "/v1/chat/completions", "body": {"model": model, "messages": messages}}
    lines = jsonl([{"custom_id": "one", **line}])
    file_id = call("files.create", ("lines.jsonl", lines), "batch", answers={"object": "file"})["id"]
    call("files.retrieve", file_id, answers={"id": file_id, "bytes": len(lines), "purpose": "batch"})
    call("files.list", purpose="batch", answers={"data": Including({"id": file_id})})
    call("files.wait_for_processing", file_id, poll_interval=0.02, answers={"status": "processed"})
    for method in ("files.content", "files.retrieve_content"):
        client.check(method, call(method, file_id).content, lines)

    asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = call("batches.create", **asked, answers={"object": "batch", "status": "validating"})["id"]
    client.until(lambda batch: batch["status"] == "completed", "batches.retrieve", batch_id)
    call("batches.list", answers={"data": Including({"id": batch_id})})
    call("batches.output", batch_id)
    call("batches.cancel", batch_id, refused=409)
    call("files.delete", file_id, answers={"id": file_id, "deleted": True})
    call("files.retrieve", file_id, refused=404)


def uploads(client, platform):
    call = client.call
    data = jsonl([{"custom_id": "one"}])
    asked = {"bytes": len(data), "filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch"}
    upload_id = call("uploads.create", **asked, answers={"object": "upload", "status": "pending"})["id"]
    part = call("uploads.parts.create", upload_id, data=data, answers={"object": "upload.part"})
    call("uploads.complete", upload_id, part_ids=[part["id"]], answers={"status": "completed"})
    other = call("uploads.create", **asked)
    call("uploads.cancel", other["id"], answers={"status": "cancelled"})
    of_chunks = {"filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch", "bytes": len(data)}
    call("uploads.upload_file_chunked", file=data, **of_chunks, answers={"status": "completed"})


def fine_tuning(client, platform):
    call = client.call
    example = {"messages": [*messages, {"role": "assistant", "content": "yes"}]}
    file_id = call("files.create", ("train.jsonl", jsonl([example] * 10)), "fine-tune")["id"]
    job_id = call("fine_tuning.jobs.create", model=model, training_file=file_id)["id"]
    call("fine_tuning.jobs.retrieve", job_id, answers={"id": job_id, "object": "fine_tuning.job"})
    call("fine_tuning.jobs.list", answers={"data": Including({"id": job_id})})
    call("fine_tuning.jobs.list_events", job_id, answers={"object": "list"})
    call("fine_tuning.jobs.checkpoints.list", job_id, answers={"object": "list"})
    call("fine_tuning.jobs.cancel", job_id, answers={"id": job_id})


def prompts(client, platform):
    call = client.call
    collection_id = call("collections.create", "prompts")["id"]
    label_id = call("labels.create", name=f"prompts-{client.name}")["id"]

    partial_name = f"rules-{client.name}".lower()
    partial = call("prompts.partials.create", name=partial_name, string="Be kind.")["slug"]
    client.fails_itself("prompts.partials.list", saying=of_lists)
    call("prompts.partials.update", partial, string="Be brief.")
    call("prompts.partials.publish", partial, version=2)
    call("prompts.partials.retrieve", partial, answers={"string": "Be brief.", "version": 2})
    client.fails_itself("prompts.partials.versions.list", partial, saying=of_lists)

    def saying(content):
        return json.dumps([{"role": "user", "content": content}])

    template = {"string": saying("{{name}}"), "parameters": {"model": "sim-small"}, "virtual_key": "simulator"}
    slug = call("prompts.create", name="m", collection_id=collection_id, **template)["slug"]
    call("prompts.retrieve", slug, answers={"slug": slug, "prompt_version": 1})
    call("prompts.list", answers={"data": Including({"slug": slug})})
    call("prompts.update", slug, string=saying("{{>%s}} Hello {{name}}" % partial))
    call("prompts.publish", slug, version=2)
    client.fails_itself("prompts.versions.list", slug, saying=of_lists)
    call("prompts.versions.retrieve", slug, "1", answers={"prompt_version": 1})
    call("prompts.versions.update", slug, "2", label_id=label_id)
    called = {"prompt_id": slug, "variables": {"name": "Ada"}}
    said = Including({"role": "user", "content": "Be brief. Hello Ada"})
    call("prompts.render", **called, answers={"success": True, "data": {"messages": said}})
    call("prompts.completions.create", **called, answers={"object": "chat.completion"})
    chunks = client.items(call("prompts.completions.create", **called, stream=True))
    client.check("prompts.completions.create", chunks, Including({"object": "chat.completion.chunk"}))

    call("prompts.delete", slug)
    call("prompts.retrieve", slug, refused=404)
    call("prompts.partials.delete", partial)
    call("prompts.partials.retrieve", partial, refused=404)
    call("labels.delete", label_id)
    call("collections.delete", collection_id)


def logs(client, platform):
    call = client.call
    trace_id = f"logs-{client.name}"
    request = {"url": "https://llm.example.com", "method": "POST", "headers": {}, "body": {"model": "m"}}
    response = {"status": 200, "headers": {}, "body": {}, "response_time": 12}
    call("logs.create", request=request, response=response, metadata={"trace_id": trace_id})

    requested = {"requested_data": ["id", "trace_id"]}
    export = call("logs.exports.create", **requested, filters={"trace_id": ["none"]}, answers={"object": "export"})
    export_id = export["id"]
    call("logs.exports.update", export_id=export_id, **requested, filters={"trace_id": [trace_id]})
    call("logs.exports.list", answers={"data": Including({"id": export_id, "status": "draft"})})
    call("logs.exports.start", export_id=export_id, answers={"message": "Export started"})
    client.until(lambda export: export["status"] == "success", "logs.exports.retrieve", export_id=export_id)
    call("logs.exports.download", export_id=export_id, answers={"signed_url": str})
    call("logs.exports.cancel", export_id=export_id, refused=409)


def feedback(client, platform):
    call = client.call
    given = {"trace_id": f"feedback-{client.name}", "value": 1}
    answered = call("feedback.create", **given, answers={"status": "success", "feedback_ids": list})
    call("feedback.bulk_create", feedbacks=[given, {**given, "value": -1}], answers={"status": "success"})
    call("feedback.update", feedback_id=answered["feedback_ids"][0], value=2, answers={"status": "success"})


def analytics(client, platform):
    call = client.call
    now = datetime.now(timezone.utc)
    span = {
        "time_of_generation_min": (now - timedelta(hours=1)).isoformat(),
        "time_of_generation_max": (now + timedelta(minutes=1)).isoformat(),
    }
    for method in [method for method in client.methods if method.startswith("analytics.graphs.")]:
        client.attempt(method, **span, answers={"data_points": list})
    for name in ("users", "ai_models", "workspaces"):
        client.attempt(f"analytics.groups.{name}", **span, answers={"object": "list"})
    client.attempt("analytics.groups.metadata", metadata_key="team", **span, answers={"object": "list"})
    client.attempt("analytics.groups.group_by", group_by="model", **span, answers={"object": "list"})
    client.attempt("analytics.summary.cache", **span, answers={"object": str})


areas = [
    chat,
    models,
    forwarded,
    files_and_batches,
    uploads,
    fine_tuning,
    prompts,
    logs,
    feedback,
    analytics,
]
