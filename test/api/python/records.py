"""Every method for people, keys, configs, integrations, guardrails, labels and collections."""

import httpx
from kit import Including


def people(client, platform):
    call = client.call
    name = f"Methods of {client.name}"
    workspace_id = call("admin.workspaces.create", name=name, answers={"name": name})["id"]
    call("admin.workspaces.retrieve", workspace_id=workspace_id, answers={"id": workspace_id, "name": name})
    call("admin.workspaces.list", answers={"data": Including({"id": workspace_id})})
    call("admin.workspaces.update", workspace_id=workspace_id, description="all", answers={"description": "all"})

    of_workspace = [{"id": workspace_id, "role": "member"}]
    email = f"{client.name}@example.org".lower()
    invite = call("admin.users.invites.create", email=email, role="member", workspaces=of_workspace)
    call("admin.users.invites.retrieve", invite_id=invite["id"], answers={"email": email, "status": "pending"})
    call("admin.users.invites.list", answers={"data": Including({"id": invite["id"]})})
    # The asynchronous client has it in another place.
    resend = "admin.users.invites.resend" if "admin.users.invites.resend" in client.methods else "admin.users.resend"
    link = call(resend, invite_id=invite["id"])["invite_link"]
    other = call("admin.users.invites.create", email=f"other-{email}", role="member")
    call("admin.users.invites.delete", invite_id=other["id"], answers={"deleted": True})

    token = link.split("#token=")[1]
    accepted = httpx.post(f"{platform.url}/admin/users/invites/accept", json={"token": token, "first_name": "M"})
    user_id = accepted.raise_for_status().json()["id"]
    call("admin.users.retrieve", user_id=user_id, answers={"id": user_id, "email": email})
    call("admin.users.list", answers={"data": Including({"id": user_id})})
    member = {"workspace_id": workspace_id, "user_id": user_id}
    call("admin.workspaces.users.retrieve", **member, answers={"role": "member"})
    call("admin.workspaces.users.update", **member, role="manager", answers={"role": "manager"})
    call("admin.workspaces.users.list", workspace_id=workspace_id, answers={"data": Including({"id": user_id})})
    call("admin.workspaces.users.delete", **member, answers={"deleted": True})
    added = [{"id": user_id, "role": "member"}]
    call("admin.workspaces.users.create", workspace_id=workspace_id, users=added, answers={"data": Including({})})
    call("admin.users.update", user_id=user_id, role="admin", answers={"role": "admin"})
    call("admin.users.delete", user_id=user_id, answers={"deleted": True})
    call("admin.workspaces.delete", workspace_id=workspace_id, name=name, answers={"deleted": True})


def api_keys(client, platform):
    call = client.call
    of_service = {"type": "workspace", "sub_type": "service", "scopes": ["chat.write"]}
    made = call("api_keys.create", **of_service, name="m", answers={"object": "api-key", "key": str})
    key_id = made["id"]
    call("api_keys.retrieve", id=key_id, answers={"id": key_id, "name": "m", "scopes": ["chat.write"]})
    call("api_keys.list", answers={"data": Including({"id": key_id})})
    call("api_keys.update", id=key_id, name="n")
    call("api_keys.retrieve", id=key_id, answers={"name": "n"})
    call("api_keys.delete", id=key_id)
    call("api_keys.retrieve", id=key_id, refused=404)


def virtual_keys(client, platform):
    call = client.call
    slug = call("virtual_keys.create", name="m", provider="openai", key="sk-1")["slug"]
    call("virtual_keys.retrieve", slug=slug, answers={"slug": slug, "name": "m", "status": "active"})
    call("virtual_keys.list", answers={"data": Including({"slug": slug})})
    call("virtual_keys.update", slug=slug, note="x", answers={"note": "x"})
    call("virtual_keys.delete", slug=slug)
    call("virtual_keys.retrieve", slug=slug, refused=404)


def configs(client, platform):
    call = client.call
    slug = call("configs.create", name="m", config={"virtual_key": "simulator"})["data"]["slug"]
    call("configs.retrieve", slug=slug, answers={"slug": slug, "config": {"virtual_key": "simulator"}})
    call("configs.list", answers={"data": Including({"slug": slug})})
    call("configs.update", slug=slug, name="n")
    call("configs.retrieve", slug=slug, answers={"name": "n"})
    call("configs.delete", slug=slug)
    call("configs.retrieve", slug=slug, refused=404)


def integrations(client, platform):
    call = client.call
    slug = f"m-{client.name}".lower()
    call("integrations.create", name="m", slug=slug, ai_provider_id="openai", key="sk-1", answers={"slug": slug})
    call("integrations.retrieve", slug=slug, answers={"slug": slug, "status": "active"})
    call("integrations.list", answers={"data": Including({"slug": slug})})
    call("integrations.update", slug=slug, name="n")
    call("integrations.retrieve", slug=slug, answers={"name": "n"})
    models = [{"slug": "gpt-5", "enabled": True}, {"slug": "gpt-5-mini", "enabled": True}]
    call("integrations.models.update", slug=slug, allow_all_models=False, models=models)
    call("integrations.models.list", slug=slug, answers={"total": 2, "models": Including({"slug": "gpt-5"})})
    call("integrations.models.delete", slug=slug, slugs="gpt-5")
    call("integrations.models.list", slug=slug, answers={"total": 1, "models": Including({"slug": "gpt-5-mini"})})
    shared = [{"id": "default", "enabled": True}]
    call("integrations.workspaces.update", slug=slug, workspaces=shared)
    call("integrations.workspaces.list", slug=slug, answers={"total": 1, "workspaces": Including({"enabled": True})})

    provider = f"p-{client.name}".lower()
    call("providers.create", name="p", slug=provider, integration_id=slug, answers={"slug": provider})
    call("providers.retrieve", slug=provider, answers={"slug": provider, "name": "p", "status": "active"})
    call("providers.list", answers={"data": Including({"slug": provider})})
    call("providers.update", slug=provider, note="x")
    call("providers.retrieve", slug=provider, answers={"note": "x"})
    call("providers.delete", slug=provider)
    call("providers.retrieve", slug=provider, refused=404)
    call("integrations.delete", slug=slug)
    call("integrations.retrieve", slug=slug, refused=404)


def guardrails(client, platform):
    call = client.call
    checks = [{"id": "default.isAllLowerCase", "parameters": {}}]
    guardrail_id = call("guardrails.create", name="m", checks=checks, actions={"deny": True})["slug"]
    call("guardrails.retrieve", guardrail_id=guardrail_id, answers={"name": "m", "checks": Including(checks[0])})
    call("guardrails.list", answers={"data": Including({"slug": guardrail_id})})
    call("guardrails.update", guardrail_id=guardrail_id, name="n")
    call("guardrails.retrieve", guardrail_id=guardrail_id, answers={"name": "n"})
    call("guardrails.delete", guardrail_id=guardrail_id)
    call("guardrails.retrieve", guardrail_id=guardrail_id, refused=404)


def labels(client, platform):
    call = client.call
    label_id = call("labels.create", name=f"m-{client.name}", color_code="#ff0000")["id"]
    call("labels.retrieve", label_id, answers={"name": f"m-{client.name}"})
    call("labels.list", answers={"data": Including({"id": label_id})})
    call("labels.update", label_id, description="d")
    call("labels.retrieve", label_id, answers={"description": "d"})
    call("labels.delete", label_id)
    call("labels.retrieve", label_id, refused=404)


def collections(client, platform):
    call = client.call
    collection_id = call("collections.create", "m")["id"]
    call("collections.retrieve", collection_id, answers={"name": "m"})
    call("collections.list", answers={"data": Including({"id": collection_id})})
    call("collections.update", collection_id, name="n")
    call("collections.retrieve", collection_id, answers={"name": "n"})
    call("collections.delete", collection_id)
    call("collections.retrieve", collection_id, refused=404)


areas = [people, api_keys, virtual_keys, configs, integrations, guardrails, labels, collections]
