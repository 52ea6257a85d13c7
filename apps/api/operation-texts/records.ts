import { providers } from '#libs/providers/provider-list.ts';
import type { OperationTexts } from '#libs/http/openapi.ts';
import type { AnyResource } from '#libs/records/define-resource.ts';
import { operationName } from '#libs/records/resource-routes.ts';

/**
 * What holds for the records of every kind: how they are listed, found, made, changed and deleted, and which errors all of
 * them have. What is special of a kind comes before it in the document.
 */
export function recordTexts(kind: AnyResource): OperationTexts {
  const [one, many] = [operationName(kind.names.one), operationName(kind.names.many)];
  const owner = kind.owner ?? 'workspace';
  const ofWorkspace = kind.hasShared
    ? 'Those of the workspace of the key and those that the organisation shares with it'
    : 'Those of the workspace of the key';
  const whose = {
    workspace: kind.isOrganisationFirst
      ? `${ofWorkspace}; who acts for the organisation sees all, or with \`workspace_id\` those of one.`
      : `${ofWorkspace}; a key of the organisation may name another one with \`workspace_id\`.`,
    organisation: 'For those who act for the organisation.',
    itself: 'A key of a workspace sees its own.',
  }[owner];
  const listed = kind.listsBare
    ? 'A bare array: up to `page_size` records (100 by default) from `current_page`, which begins at 0.'
    : 'In pages: `limit` after the id in `after`, or `page_size` from `current_page` (from 0), with `total`.';
  const named = kind.slug ? 'slug or id' : 'id';
  const missing = { [`${kind.noun}_not_found`]: `the key sees none with this ${named}` };
  const elsewhere: Record<string, string> =
    owner === 'workspace' ? { workspace_not_found: '`workspace_id` names none that the key may use' } : {};
  const ofOrganisation: Record<string, string> =
    owner === 'workspace' && !kind.hasShared
      ? {}
      : {
          organisation_key_required: `only those who act for the organisation change ${owner === 'workspace' ? 'what it shares' : 'this'}`,
        };
  const tooLarge: Record<string, string> =
    kind.cached && owner === 'workspace'
      ? { records_too_large: 'the records of the workspace would take up more memory than allowed' }
      : {};
  const found = { description: `By its ${named}.`, errors: { ...missing, ...elsewhere } };
  const changing = { ...missing, ...elsewhere, ...ofOrganisation };
  const noVersion = { ...found.errors, [`${kind.noun}_version_not_found`]: 'it has no such version' };
  const ofVersions = kind.noun.split('_').map(operationName).join('');
  return {
    [`create${one}`]: {
      description: 'With an `Idempotency-Key` a repeat makes no second one.',
      errors: {
        ...(kind.slug ? { slug_taken: 'another one has this slug' } : {}),
        ...(kind.countLimit ? { too_many_records: 'the workspace already has the maximum number of them' } : {}),
        ...tooLarge,
        ...elsewhere,
        ...ofOrganisation,
        idempotency_key_reused: 'the `Idempotency-Key` came before with another body',
        ...(kind.refuseReplay
          ? { idempotency_replay_unavailable: 'it is a repeat, and its answer had what is shown only once' }
          : {}),
      },
    },
    [`list${many}`]: { description: `${listed} ${whose}`, errors: elsewhere },
    [`retrieve${one}`]: found,
    [`update${one}`]: {
      description: kind.versioned
        ? 'What changes makes a new version; a request that changes nothing makes none.'
        : 'A request that changes nothing leaves no event.',
      errors: { ...changing, ...tooLarge },
    },
    [`delete${one}`]: {
      description: `Its events stay in the log${kind.slug ? ', and its slug is free again' : ''}.`,
      errors: changing,
    },
    [`list${ofVersions}Versions`]: {
      description: `What the record was after each change, newest first${kind.versioned?.listsBare ? ', as a bare array' : ''}. Versions never change.`,
      errors: found.errors,
    },
    [`retrieve${ofVersions}Version`]: {
      description: 'By its number, from 1. A version never changes.',
      errors: noVersion,
    },
    ...(kind.versioned?.publish === 'on_request' ? { [`publish${ofVersions}`]: { errors: noVersion } } : {}),
  };
}

const referenceErrors = {
  secret_reference_not_found: 'a member of `secret_mappings` names none',
  secret_key_not_allowed: 'the organisation does not share this member of its secret',
  host_not_allowed: 'the secret reference may not be sent to this host',
};
const policyErrors = {
  too_many_policies: 'the workspace has as many as it may have',
  organisation_not_found: '`organisation_id` names another organisation than this one',
};
const templateErrors = {
  invalid_template: 'the template is wrong, with the position and the reason',
  prompt_partial_not_found: 'it puts in a partial that the workspace does not have',
  prompt_too_large: 'it is larger than a template may be',
  collection_not_found: '`collection_id` names none',
};
const integrationErrors = { integration_not_found: 'the key sees none with this slug or id' };
const notYours = { organisation_key_required: 'only those who act for the organisation change what it shares' };
const secretInConfig = { secret_in_config: 'it contains a credential: store that in a virtual key' };
const { id: provider = '' } = providers[0] ?? {};

/** What is special of a kind. */
export const specialRecordTexts: OperationTexts = {
  createConfig: {
    description: 'Where calls go and what happens around them. Calls name it by its slug in `x-gateway-config`.',
    example: {
      name: 'Support',
      config: { strategy: { mode: 'fallback' }, targets: [{ virtual_key: 'main' }, { virtual_key: 'spare' }] },
    },
    errors: secretInConfig,
  },
  updateConfig: {
    description: 'Calls use the newest document; batches that have begun keep theirs.',
    example: { config: { retry: { attempts: 3 }, targets: [{ virtual_key: 'main' }] } },
    errors: secretInConfig,
  },
  deleteConfig: {
    description: 'Calls that name it are refused from then on; batches that have begun keep it.',
  },
  explainConfig: {
    description:
      'Which conditions hold, which target is chosen, and why one would be refused, by the code that routes calls.',
    example: { config: 'support', body: { model: 'gpt-4o-mini' }, metadata: { tier: 'gold' } },
    errors: { config_not_found: 'the config does not exist' },
  },
  createGuardrail: {
    description: 'Checks of requests or answers, which configs and workspaces name by slug.',
    example: {
      name: 'No passwords',
      checks: [{ id: 'default.contains', parameters: { operator: 'none', words: ['password'] } }],
      actions: { deny: true },
    },
  },
  updateGuardrail: {
    description: 'Calls use the change from then on.',
    example: { actions: { deny: false } },
    errors: { guardrail_unreadable: 'its stored secrets cannot be decrypted: send all its checks again' },
  },
  deleteGuardrail: {
    description: 'Refused while something names it, because calls would go on without it.',
    errors: { guardrail_in_use: 'a config, a workspace or a key names it' },
  },
  retrieveGuardrails: { description: 'Those that run for every call of the workspace, whatever its config says.' },
  setGuardrails: {
    description:
      'Replaces both lists; one that is left out becomes empty. Calls that are under way keep what they began with.',
    example: { input_guardrails: [{ 'default.contains': { operator: 'none', words: ['password'] }, deny: true }] },
  },
  createVirtualKey: {
    description:
      'The credential is encrypted and never shown again. Calls name it as `@slug/model`. Virtual keys and providers share their slugs.',
    example: { name: 'Main', slug: 'main', provider, key: 'sk-your-key' },
    errors: referenceErrors,
  },
  updateVirtualKey: {
    description:
      'A new credential is used from the next call on, also by batches that run. Another host needs the credential again.',
    example: { note: 'of the search team', rate_limits: [{ type: 'requests', unit: 'rpm', value: 600 }] },
    errors: { credential_required: 'the stored credential would be sent to another server', ...referenceErrors },
  },
  deleteVirtualKey: {
    description: 'Its credential is wiped, except for batches that run with it, until they have ended.',
  },
  createSecretReference: {
    description:
      'Where a credential is kept outside: HashiCorp Vault, AWS Secrets Manager, Azure Key Vault, an environment variable or a file. It is ' +
      'read when a call needs it, and again after some minutes, so a rotation needs no restart.',
    example: {
      name: 'Main',
      manager_type: 'hashicorp_vault',
      auth_config: { vault_auth_type: 'token', vault_addr: 'https://vault.example.com', vault_token: 'hvs.…' },
      secret_path: 'secret/data/llm',
      secret_key: 'api_key',
    },
    errors: { limit_exceeded: 'there are as many as may be' },
  },
  updateSecretReference: {
    description:
      'Used from the next time that a credential is read. A secret of `auth_config` that is left out stays, unless the address changes.',
    example: { secret_path: 'secret/data/llm-2026' },
  },
  deleteSecretReference: {
    description: 'Refused while a virtual key or an integration takes a credential from it.',
    errors: { secret_reference_in_use: 'something takes a credential from it' },
  },
  createIntegration: {
    description:
      'The credential of a provider for the whole organisation, or for one workspace. Unless `create_default_provider` is false, a ' +
      'workspace of its own gets a provider of it at once.',
    example: { name: 'Company account', ai_provider_id: provider, key: 'sk-your-key' },
    errors: referenceErrors,
  },
  updateIntegration: {
    description: 'A new credential is used from the next call on, in every workspace.',
    example: { description: 'Paid by the search department' },
    errors: { credential_required: 'the stored credential would be sent to another server', ...referenceErrors },
  },
  deleteIntegration: {
    description: 'Its credential is wiped, and its providers are refused as `integration_deleted`.',
  },
  listIntegrationModels: {
    description: 'Those that were allowed, excluded or priced by name; `allow_all_models` says what holds for others.',
    errors: integrationErrors,
  },
  setIntegrationModels: {
    description:
      'Holds on every route, lines of batches included. Custom and fine-tuned models are added with `is_custom` and `is_finetune`.',
    example: { allow_all_models: false, models: [{ slug: 'gpt-5-mini', enabled: true }] },
    errors: { ...integrationErrors, ...notYours, limit_exceeded: 'an integration lists at most 1,000 models' },
  },
  deleteIntegrationModels: {
    description: 'Named by `slugs` in the query. What holds for them afterwards is `allow_all_models`.',
    errors: { ...integrationErrors, ...notYours },
  },
  listIntegrationWorkspaces: {
    description:
      'With the budgets and rates of each, and the access of all others. A workspace sees its own access alone.',
    errors: integrationErrors,
  },
  setIntegrationWorkspaces: {
    description: 'A workspace that is enabled gets a provider of its own, unless `create_default_provider` is false.',
    example: {
      workspaces: [
        {
          id: 'ws_abc',
          enabled: true,
          usage_limits: [{ type: 'cost', credit_limit: 10_000, periodic_reset: 'monthly' }],
        },
      ],
    },
    errors: {
      ...integrationErrors,
      ...notYours,
      workspace_not_found: 'one of `workspaces` does not exist',
      integration_of_workspace: 'it belongs to one workspace',
      limit_exceeded: 'it is shared with at most 1,000 workspaces by name',
    },
  },
  createProvider: {
    description:
      "A workspace's own use of an integration, with a slug, budgets and rates. Calls name it as `@slug/model`.",
    example: { name: 'Search', integration_id: 'company-account' },
    errors: { integration_not_found: 'there is none, or it is not shared with the workspace' },
  },
  updateProvider: {
    description: '`reset_usage` begins its budget anew.',
    example: { rate_limits: [{ type: 'requests', unit: 'rpm', value: 600 }] },
  },
  createCollection: {
    description: 'A folder of prompts and partials, at most five deep.',
    example: { name: 'Support' },
    errors: { collection_not_found: 'the parent does not exist' },
  },
  updateCollection: { description: 'Its name. A collection stays where it lies.', example: { name: 'Customers' } },
  deleteCollection: {
    description: 'Only an empty one, and not the default one.',
    errors: { default_collection: 'it is the default one', collection_not_empty: 'something is in it' },
  },
  createLabel: {
    description: 'A name for a version, as in `support@production`. With `organisation_id` every workspace sees it.',
    example: { name: 'production', color_code: '#2e7d32' },
    errors: { label_exists: 'there is one with this name' },
  },
  updateLabel: {
    description: 'Versions that have it keep it, under the new name.',
    example: { color_code: '#1565c0' },
    errors: { label_exists: 'there is one with this name' },
  },
  deleteLabel: { description: 'It is taken from the versions that have it.' },
  createPartial: {
    description: 'A text that prompts put in with `{{>slug}}`.',
    example: { name: 'Closing', string: 'Kind regards, {{team}}' },
    errors: templateErrors,
  },
  updatePartial: {
    description: 'The new version is in use after `makeDefault`.',
    example: { string: 'Yours, {{team}}' },
    errors: templateErrors,
  },
  deletePartial: { description: 'Calls of prompts that put it in fail, rather than leave a gap.' },
  publishPromptPartial: { description: 'Prompts put this version in from then on.', example: { version: 2 } },
  createPrompt: {
    description: 'A template with variables in double braces. Its versions are numbered, and one of them is in use.',
    example: {
      name: 'Support reply',
      virtual_key: 'main',
      model: 'gpt-5-mini',
      parameters: { temperature: 0.2 },
      string: '[{"role":"user","content":"Answer {{customer}} kindly: {{question}}"}]',
    },
    errors: templateErrors,
  },
  updatePrompt: {
    description:
      'The new version is in use after `makeDefault`. Unless `patch` is true, a change empties `functions`, `tools`, `tool_choice` and ' +
      '`template_metadata` where it leaves them out.',
    example: { patch: true, parameters: { temperature: 0 }, version_description: 'colder' },
    errors: templateErrors,
  },
  deletePrompt: { description: 'Batches that have begun keep its versions.' },
  publishPrompt: { description: 'Calls that name no version use this one from then on.', example: { version: 2 } },
  labelPromptVersion: {
    description: 'A label is on one version of a prompt, and a version has one label; null takes it away.',
    example: { label_id: 'production' },
    errors: {
      label_not_found: 'there is no such label',
      prompt_not_found: 'the key sees none with this slug or id',
      prompt_version_not_found: 'it has no such version',
    },
  },
  createUsageLimitPolicy: {
    description:
      'A budget of US cents or tokens for calls that meet the conditions, counted apart for each value of `group_by`. It is checked ' +
      'before a call and settled after it.',
    example: {
      name: 'A team a month',
      type: 'cost',
      credit_limit: 10_000,
      periodic_reset: 'monthly',
      conditions: [{ key: 'metadata.team', value: '*' }],
      group_by: [{ key: 'metadata.team' }],
    },
    errors: policyErrors,
  },
  updateUsageLimitPolicy: {
    description: 'What was counted stays. `reset_usage_for_value` sets one counter to 0.',
    example: { credit_limit: 20_000 },
    errors: { policy_entity_not_found: '`reset_usage_for_value` names no counter of it' },
  },
  deleteUsageLimitPolicy: { description: 'It is archived: it no longer counts, and `status=archived` lists it.' },
  listUsageLimitPolicyEntities: {
    description: 'What each counter has used in the current period, and how many of its calls have no price.',
    errors: { usage_limit_policy_not_found: 'the key sees none with this id' },
  },
  resetUsageLimitPolicyEntity: {
    description: 'Processes notice it within about a second.',
    errors: {
      usage_limit_policy_not_found: 'the key sees none with this id',
      policy_entity_not_found: 'the policy has no such counter',
    },
  },
  createRateLimitPolicy: {
    description: 'Calls or tokens in a minute, hour or day for calls that meet the conditions.',
    example: {
      name: 'Each key',
      type: 'requests',
      unit: 'rpm',
      value: 600,
      conditions: [],
      group_by: [{ key: 'api_key' }],
    },
    errors: policyErrors,
  },
  updateRateLimitPolicy: {
    description: 'Every process counts by it within about a second.',
    example: { value: 1_200 },
  },
  deleteRateLimitPolicy: { description: 'It is archived: it no longer counts, and `status=archived` lists it.' },
  createPriceTable: {
    description:
      'In use from now on, in place of the whole table before it: a model that it does not name has no price. US dollars for a million ' +
      'tokens, or for a call or an image. Calls keep what they cost, and the version of the table that they were counted with.',
    example: {
      table: {
        date: '2026-11-01',
        providers: {
          [provider]: {
            source: 'https://example.com/prices',
            as_of: '2026-11-01',
            models: { 'gpt-5-mini': { input: '0.25', cached_input: '0.025', output: '2' } },
          },
        },
      },
    },
  },
  deletePriceTable: {
    description:
      'The one before it is in use again, or the one of the release. Calls that were counted with it keep what they cost.',
  },
};
