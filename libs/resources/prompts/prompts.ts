import { isDeepStrictEqual } from 'node:util';
import { sql } from 'kysely';
import { z } from 'zod';
import {
  LabelVersionRequest,
  promptFields,
  PromptObject,
  promptUpdateFields,
} from '#libs/contracts/configs/prompts.ts';
import { withInput } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { compilePrompt } from '#libs/prompts/prompt-template.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import { redactSecrets, refuseCredentials, splitSecrets } from '#libs/credentials/configs/config-secrets.ts';
import { refuseUnstorable } from '#libs/credentials/configs/config-document.ts';
import { collectionFilter, collectionLock, collectionOf, keepDefaultCollection } from './collections.ts';
import { defineKind, type CheckContext } from '#libs/resources/define-kind.ts';
import { activeLabels, findLabel } from './labels.ts';
import { refuseUnknownPartials } from './prompt-partials.ts';
import { promptsLimit, refuseLargeVersion } from './prompt-limits.ts';
import { versionId, versionNumber, versionParams, versionViewOf } from '#libs/records/traits/versions.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { credentialKinds } from '#libs/resources/stored-credential.ts';
import { templateErrors } from '#libs/resources/kind-texts.ts';

/** The content of one version, which never changes. */
export type PromptVersion = {
  string: string;
  parameters: Readonly<Record<string, unknown>>;
  functions: object[] | null;
  tools: object[] | null;
  tool_choice: string | object | null;
  model: string | null;
  /** The slug of a virtual key and of a stored config. */
  virtual_key: string | null;
  config: string | null;
  version_description: string | null;
  template_metadata: object | null;
  is_raw_template: boolean;
};

export type PromptData = PromptVersion & {
  name: string;
  collection_id: string;
  /** Maps the ID of a label to the version that has it. */
  labels?: Readonly<Record<string, number>>;
  /** The version in use. */
  prompt_version: number;
};

export type LivePrompt = {
  readonly id: string;
  readonly workspaceId: string;
  readonly slug: string;
  readonly version: number;
  readonly lastVersion: number;
  readonly labels: Readonly<Record<string, number>>;
  /** The content of the version in use. */
  readonly data: PromptVersion;
};

const versionFields = [
  'string',
  'parameters',
  'functions',
  'tools',
  'tool_choice',
  'model',
  'virtual_key',
  'config',
  'version_description',
  'template_metadata',
  'is_raw_template',
] as const satisfies (keyof PromptVersion)[];

/**
 * A change that omits these fields clears them, unless it is a patch. The other fields cannot be empty, or decide where
 * calls are sent.
 */
const emptiedFields = ['functions', 'tools', 'tool_choice', 'template_metadata'] as const;

/** The template produces these members, except that the request decides whether the answer is streamed. */
const ownMembers: readonly string[] = ['messages', 'prompt', 'stream', 'stream_options', 'variables', 'prompt_id'];

type PromptInput = Partial<z.output<z.ZodObject<typeof promptFields & typeof promptUpdateFields>>>;

/**
 * A template together with its request. A change creates a version, which is used once it is published, or when a call asks
 * for `slug@version`. libs/stored-prompts/prompts.ts renders it.
 */
export const promptKind = defineKind<typeof promptFields, PromptData, LivePrompt>({
  noun: 'prompt',
  idPrefix: 'prompt_',
  area: 'prompts',
  texts: {
    create: {
      description:
        'A template with variables in double braces. Its versions are numbered, and one of them is published.',
      example: {
        name: 'Support reply',
        virtual_key: 'main',
        model: 'gpt-5-mini',
        parameters: { temperature: 0.2 },
        string: '[{"role":"user","content":"Answer {{customer}} kindly: {{question}}"}]',
      },
      errors: templateErrors,
    },
    update: {
      description:
        'The new version is used after you publish it with `makeDefault`. Unless `patch` is true, `functions`, ' +
        '`tools`, `tool_choice` and `template_metadata` become empty if you leave them out.',
      example: { patch: true, parameters: { temperature: 0 }, version_description: 'colder' },
      errors: templateErrors,
    },
    delete: { description: 'Batches that have started keep their versions.' },
    publish: { description: 'Calls that do not name a version use this one from then on.', example: { version: 2 } },
  },
  path: '/v1/prompts',
  names: {
    one: 'prompt',
    many: 'prompts',
    tag: 'Prompts',
    about: 'Templates in numbered versions, their partials, and calls that use them.',
  },
  fields: promptFields,
  applied: {
    refersTo: { collection: 'collection_id', label: null, prompt_partial: null, virtual_key: null, config: null },
  },
  changes: { fields: promptUpdateFields },
  slugs: { reserved: ['partials'] },
  creation: { limit: promptsLimit },
  // The corresponding filter of partials is in their routes.
  filters: {
    collection_id: collectionFilter,
    search: { schema: z.string().max(200), field: 'name', match: 'contains' },
  },
  locks: (workspaceId) => [collectionLock(workspaceId)],
  prepare: keepDefaultCollection,
  versions: {
    fields: versionFields,
    publish: 'on_request',
    listsBare: true,
    view: (row, { number, data, created_at }, place) => ({
      ...viewOf({ ...row, data: { ...row.data, ...data, prompt_version: number } }),
      ...(place === 'list' ? { id: versionId(row.id, number) } : {}),
      prompt_id: row.id,
      prompt_version_status: number === row.data.prompt_version ? 'active' : 'archived',
      prompt_template: { string: data.string, parameters: redactSecrets(data).parameters, model: data.model },
      prompt_description: data.version_description ?? null,
      created_at: created_at.toISOString(),
    }),
    async asNumber(row, name, { db }) {
      const label = await findLabel(db, row.workspace_id, name);
      return label === null ? null : (row.data.labels?.[label] ?? null);
    },
  },

  async check(input: PromptInput, context) {
    const { row } = context;
    const { name, collection_id: collection } = input;
    const isMoved = row === null || collection !== undefined;
    const version = versionOf(input, row === null);
    await checkVersion(version, context);
    const { document, secrets } = await withoutSecrets(version, context);
    return {
      data: {
        ...(name === undefined ? {} : { name }),
        ...(isMoved ? { collection_id: await collectionOf(context, collection) } : {}),
        ...document,
      },
      ...(secrets && { secrets }),
    };
  },

  history: {
    events: {
      // A label is on at most one version of a prompt, and a version has at most one label.
      version_labelled(data, { data: { version, label_id: label } }) {
        const others = Object.entries(data.labels ?? {}).filter(([id, number]) => id !== label && number !== version);
        return { ...data, labels: Object.fromEntries(label === null ? others : [...others, [label, version]]) };
      },
    },
  },

  view: viewOf,
  viewSchema: PromptObject,

  cached: {
    toEntry: ({ id, workspace_id: workspaceId, slug, last_version, data }) => ({
      id,
      workspaceId,
      slug: slug ?? id,
      version: data.prompt_version,
      lastVersion: last_version ?? 1,
      labels: data.labels ?? {},
      data: Object.fromEntries(versionFields.map((field) => [field, data[field]])) as unknown as PromptVersion,
    }),
  },

  async related(rows, { db }) {
    const named = [...new Set(rows.flatMap(({ data }) => Object.keys(data.labels ?? {})))];
    const active = await activeLabels(db, named);
    return ({ data }) => {
      const label = labelOf(data, data.prompt_version);
      const shown = label !== null && active.has(label) ? label : null;
      return { prompt_version_label_id: shown, label_id: shown };
    };
  },

  routes: (store, _deps, kit) => [
    {
      method: 'PUT',
      path: '/v1/prompts/:slug/versions/:version',
      operationId: 'labelPromptVersion',
      summary: 'Move a label to a version of a prompt',
      description:
        'Each label marks one version of a prompt, and each version has at most one label. Send null to remove the label.',
      example: { label_id: 'production' },
      errors: {
        label_not_found: 'the label does not exist',
        prompt_not_found: 'no prompt with this slug or ID is visible to the key',
        prompt_version_not_found: 'the prompt has no such version',
      },
      ...kit.write,
      responses: { 200: { description: 'The prompt with this version.', schema: PromptObject.loose() } },
      ...withInput(
        {
          params: versionParams('slug'),
          query: z.object({ workspace_id: z.string().max(200).optional() }),
          body: LabelVersionRequest,
        },
        async ({ params, query, body }, request, response) => {
          const record = await kit.recordOf(request, query);
          const found = await store.get(record);
          const version = versionNumber(promptKind, found, params.version);
          await store.getVersion(found, version);
          const row = await store.change(
            record,
            kit.actorOf(request).metadata,
            async (unit, { workspace_id, data }) => {
              const label = body.label_id === null ? null : await findLabel(unit.tx, workspace_id, body.label_id);
              if (body.label_id !== null && label === null) throw noSuchLabel(body.label_id);
              if (labelOf(data, version) === label) return [];
              return [{ type: 'prompt.version_labelled', data: { version, label_id: label } }];
            },
          );
          const labelled = await store.getVersion(row, version);
          response.json(versionViewOf(promptKind, row, labelled, 'alone'));
        },
      ),
    },
  ],
});

/** The version fields that a request changes; empty if it names none of them. */
function versionOf(input: PromptInput, isNew: boolean): Partial<PromptVersion> {
  const { template_metadata: template = input.prompt_metadata, is_raw_template: isRaw, virtual_key: key } = input;
  const given = {
    ...Object.fromEntries(versionFields.map((field) => [field, input[field]])),
    template_metadata: template,
    is_raw_template: isRaw === undefined ? undefined : Boolean(isRaw),
    virtual_key: key?.replace(/^@/, '') ?? key,
  } as Partial<PromptVersion>;
  const named = Object.entries(given).filter(([, value]) => value !== undefined);
  if (named.length === 0) return {};
  const none = isNew ? versionFields : input.patch === true ? [] : emptiedFields;
  const left = Object.fromEntries([...none, 'version_description'].map((field) => [field, null]));
  return { ...left, ...(isNew ? { is_raw_template: false } : {}), ...Object.fromEntries(named) };
}

/**
 * Returns a new version in its stored form, and its secrets (members of parameters and tools whose names mark them as
 * secret). These include the secrets of members that stay as they are in the newest version. The secrets are absent if there
 * are none, and if they do not change.
 */
async function withoutSecrets(
  version: Partial<PromptVersion>,
  { row, unit, readSecrets }: CheckContext<PromptData>,
): Promise<{ document: Partial<PromptVersion>; secrets?: SecretMembers }> {
  if (Object.keys(version).length === 0) return { document: version };
  refuseCredentials(version, '');
  const { document, secrets } = splitSecrets(version);
  const stored = (row === null ? null : await readSecrets()) ?? {};
  const kept = Object.entries(stored).filter(
    ([place]) => !Object.hasOwn(version, (JSON.parse(place) as string[])[0] ?? ''),
  );
  const all: SecretMembers = { ...Object.fromEntries(kept), ...secrets };
  if (Object.keys(all).length === 0) return { document };
  const texts = (members: SecretMembers): Record<string, string> =>
    Object.fromEntries(Object.entries(members).map(([place, secret]) => [place, secret.reveal()]));
  const { rows } = await sql<{ data: object }>`
    select data from resource_version where id = ${versionId(row?.id ?? '', row?.last_version ?? 0)}`.execute(unit.tx);
  const isSame =
    isDeepStrictEqual(texts(all), texts(stored)) && isDeepStrictEqual({ ...rows[0]?.data, ...document }, rows[0]?.data);
  return isSame ? { document } : { document, secrets: all };
}

async function checkVersion(version: Partial<PromptVersion>, context: CheckContext<PromptData>): Promise<void> {
  if (Object.keys(version).length === 0) return;
  const { string, parameters, virtual_key: slug } = version;
  if (typeof slug === 'string') await refuseUnknownCredential(slug, context);
  refuseUnstorable(version, 'string');
  refuseLargeVersion(version, context);
  const own = Object.keys(parameters ?? {}).find((member) => ownMembers.includes(member));
  if (own !== undefined) {
    const message = `Invalid 'parameters.${own}': a prompt cannot set it; it comes from the template or from the request.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: `parameters.${own}` });
  }
  if (string !== undefined) await refuseUnknownPartials(compilePrompt(string).partials, context);
}

/** This reports a mistyped name now instead of at the first call. */
async function refuseUnknownCredential(slug: string, { unit, workspaceId }: CheckContext<PromptData>): Promise<void> {
  const { rows } = await sql`
    select from resource where kind = any(${credentialKinds}::text[]) and workspace_id = ${workspaceId} and slug = ${slug}
      and deleted_at is null limit 1`.execute(unit.tx);
  if (rows.length > 0) return;
  const message =
    `Invalid 'virtual_key': there is no virtual key or provider with the slug '${slug.slice(0, 100)}'. ` +
    'GET /v1/virtual-keys and GET /v1/providers list those that you can use.';
  throw new GatewayError('invalid_request', 'virtual_key_not_found', message, { param: 'virtual_key' });
}

function labelOf({ labels = {} }: PromptData, version: number): string | null {
  return Object.entries(labels).find(([, number]) => number === version)?.[0] ?? null;
}

function viewOf({ id, data, last_version, deleted_at }: ResourceRow<PromptData>): object {
  const version = data.prompt_version;
  const open = redactSecrets(data);
  return {
    name: data.name,
    collection_id: data.collection_id,
    ...Object.fromEntries(versionFields.slice(0, -3).map((field) => [field, open[field]])),
    template_metadata: data.template_metadata,
    is_raw_template: data.is_raw_template,
    version_id: versionId(id, version),
    prompt_version: version,
    prompt_version_id: versionId(id, version),
    prompt_version_status: 'active',
    prompt_version_description: data.version_description,
    prompt_version_label_id: labelOf(data, version),
    last_version: last_version ?? version,
    status: deleted_at ? 'deleted' : 'active',
  };
}

const noSuchLabel = (name: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'label_not_found',
    `Invalid 'label_id': there is no label '${name.slice(0, 100)}'.`,
    {
      param: 'label_id',
    },
  );
