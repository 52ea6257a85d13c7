import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Target } from '#libs/calls/call.ts';
import { getSecrets } from '#libs/calls/upstream/credential.ts';
import type { GatewayError } from '#libs/kernel/errors.ts';
import type { SettingField } from '#libs/providers/provider.ts';
import { providers } from '#libs/providers/provider-list.ts';
import { textSecret, type FetchedSecret } from '#libs/secret-managers/fetched-secret.ts';
import { SecretError } from '#libs/secret-managers/secret-error.ts';
import type { LiveSecretReference } from '#libs/secret-managers/secret-manager.ts';
import { createMappedSecrets } from './mapped-secrets.ts';

const target: Target = {
  provider: 'openai',
  baseUrl: new URL('https://api.openai.com/v1'),
  apiKey: null,
  settings: {},
  secrets: {},
  secretOrigin: 'https://api.openai.com',
  label: 'mapped',
  workspaceId: 'ws_a',
};

const reference = (id: string, more: Partial<LiveSecretReference> = {}): LiveSecretReference => ({
  id,
  slug: id,
  ownerId: 'org_default',
  managerType: 'hashicorp_vault',
  auth: {},
  secrets: {},
  path: 'secret/x',
  allowedKeys: [],
  key: null,
  workspaces: null,
  ...more,
});

type Read = () => FetchedSecret | Promise<FetchedSecret>;

/** A credential whose fields are mapped to separate references, which are read according to `reads`. */
function rig(
  reads: Record<string, Read>,
  {
    references = Object.keys(reads).map((field) => reference(field)),
    provider = 'openai',
    secretKey = null,
  }: { references?: LiveSecretReference[]; provider?: string; secretKey?: string | null } = {},
) {
  const byId = new Map(references.map((one) => [one.id, one]));
  const mappings = Object.keys(reads).map((field) => ({
    target_field: field,
    secret_reference_id: field,
    secret_key: secretKey,
    value_format: null,
  }));
  const renewed: string[] = [];
  const { complete } = createMappedSecrets({
    snapshot: { findSecretReference: (id) => byId.get(id) },
    cache: {
      read: ({ id }) => reads[id]?.() ?? textSecret(id, ''),
      renew: ({ id }) => {
        renewed.push(id);
        return Promise.resolve(textSecret(id, `${id}-renewed`));
      },
    },
  });
  return { complete: () => complete({ ...target, provider }, { ownerId: 'ws_a', mappings }), renewed };
}

test('a field of the provider is set beside the key, each where the provider looks for it', async () => {
  const read = { key: () => textSecret('key', 'sk-1'), aws_access_key_id: () => textSecret('id', 'AKIA') };
  const reads = { ...read, aws_secret_access_key: () => textSecret('secret', 'aws') };
  const completed = await rig(reads, { provider: 'bedrock' }).complete();
  expect(completed.apiKey?.reveal()).toBe('sk-1');
  expect(completed.settings).toEqual({ aws_access_key_id: 'AKIA' });
  expect(completed.secrets['aws_secret_access_key']?.reveal()).toBe('aws');
  expect(target).toMatchObject({ apiKey: null, settings: {}, secrets: {} });
});

test('one that cannot be had leaves nothing behind of the others, which fail later', async () => {
  const { promise, reject } = Promise.withResolvers<FetchedSecret>();
  const refuse = () => {
    throw new SecretError('denied', 'other', 'is refused');
  };
  const { complete } = rig({ key: () => promise, aws_secret_access_key: refuse }, { provider: 'bedrock' });
  await expect(complete()).rejects.toMatchObject({ fault: 'denied' });
  // If no caller waited for it, this rejection would end the process.
  reject(new SecretError('unavailable', 'first', 'does not answer'));
  await new Promise((resolve) => setImmediate(resolve));
});

test('a rotated value replaces the one that was used, and the same one is no news', async () => {
  const before = rig({ key: () => textSecret('key', 'sk-1') });
  const renewed = await (await before.complete()).renewCredential?.();
  expect(renewed?.apiKey?.reveal()).toBe('key-renewed');
  expect(before.renewed).toEqual(['key']);
  const same = rig({ key: () => textSecret('key', 'key-renewed') });
  expect(await (await same.complete()).renewCredential?.()).toBeNull();
});

test.each([
  ['that is gone', [], 'secret_reference_not_found'],
  ['of another workspace', [reference('key', { ownerId: 'ws_b' })], 'secret_reference_not_allowed'],
  ['that is for others', [reference('key', { workspaces: new Set(['ws_b']) })], 'secret_reference_not_allowed'],
])('a reference %s gives nothing', async (_which, references, code) => {
  const { complete } = rig({ key: () => textSecret('key', 'sk-1') }, { references });
  await expect(complete()).rejects.toMatchObject({ code });
});

test('a value that no header can hold is refused without being shown', async () => {
  const { complete } = rig({ key: () => textSecret('key', 'canary canary') });
  await expect(complete()).rejects.toMatchObject({ fault: 'malformed' });
  await expect(complete()).rejects.not.toThrow('canary');
});

/** The refusal of a call, or the texts that are scrubbed from its answers. */
async function outcome(run: () => Promise<Target>): Promise<unknown> {
  try {
    return getSecrets(await run());
  } catch (error) {
    return (error as GatewayError).code;
  }
}

const fields: { id: string; field: string; form: SettingField }[] = providers.flatMap(({ id, settings = {} }) =>
  Object.entries({ ...settings, custom_host: {} }).map(([field, form]) => ({ id, field, form })),
);

test.each(fields)('$id: $field can be mapped only if it is a credential, and is then scrubbed', async (one) => {
  const { id: provider, field, form } = one;
  const isCredential = (form.secret === true || form.mappable === true) && form.unused !== true;
  const { complete } = rig({ [field]: () => textSecret(field, 'canary_0123') }, { provider });
  expect(await outcome(complete)).toEqual(isCredential ? ['canary_0123'] : 'invalid_value');
});

test('a mapped value that is not a secret by itself has no separators, so that no error can quote a part of it', async () => {
  const { complete } = rig({ aws_access_key_id: () => textSecret('id', 'canary,0123') }, { provider: 'bedrock' });
  expect(await outcome(complete)).toBe('secret_malformed');
});

test('of a secret of the organisation a workspace gets the members that the reference names, and no others', async () => {
  const member = fc.constantFrom('api_key', 'other', 'admin_password', null);
  const members = { api_key: 'value-of-api_key', other: 'value-of-other', admin_password: 'value-of-admin_password' };
  const text = JSON.stringify(members);
  const named = fc.array(fc.constantFrom('api_key', 'other'), { maxLength: 2 });
  const owner = fc.constantFrom('org_default', 'ws_a');
  await fc.assert(
    fc.asyncProperty(member, named, member, owner, async (key, allowedKeys, secretKey, ownerId) => {
      const references = [reference('key', { key, allowedKeys, ownerId })];
      const { complete } = rig({ key: () => textSecret('key', text) }, { references, secretKey });
      const wanted = secretKey ?? key;
      const isWhole = wanted === null && key === null && allowedKeys.length === 0;
      const isNamed = wanted !== null && (wanted === key || allowedKeys.some((name) => name === wanted));
      const isAllowed = ownerId === 'ws_a' || isWhole || isNamed;
      const value = wanted === null ? text : members[wanted];
      expect(await outcome(complete)).toEqual(isAllowed ? [value] : 'secret_key_not_allowed');
    }),
  );
});
