import { expect, test } from 'vitest';
import type { Target } from '#libs/calls/call.ts';
import type { LiveCredential } from '#libs/resources/stored-credential.ts';
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
  key: null,
  workspaces: null,
  ...more,
});

type Read = () => FetchedSecret | Promise<FetchedSecret>;

/** A credential whose fields are mapped to references of their own, which are read as `reads` says. */
function rig(reads: Record<string, Read>, references = Object.keys(reads).map((field) => reference(field))) {
  const byId = new Map(references.map((one) => [one.id, one]));
  const mappings = Object.keys(reads).map((field) => ({
    target_field: field,
    secret_reference_id: field,
    secret_key: null,
    value_format: null,
  }));
  const renewed: string[] = [];
  const live = () => ({ byId, bySlug: new Map(), byLookup: new Map(), records: new Map() });
  const { complete } = createMappedSecrets({
    snapshot: { live: live as never },
    cache: {
      read: ({ id }) => reads[id]?.() ?? textSecret(id, ''),
      renew: ({ id }) => {
        renewed.push(id);
        return Promise.resolve(textSecret(id, `${id}-renewed`));
      },
    },
  });
  const key = { mapped: { ownerId: 'ws_a', mappings } } as unknown as LiveCredential;
  return { complete: () => complete(target, key), renewed };
}

test('a field of the provider is set beside the key, each where the provider looks for it', async () => {
  const read = { key: () => textSecret('key', 'sk-1'), aws_access_key_id: () => textSecret('id', 'AKIA') };
  const completed = await rig({ ...read, aws_secret_access_key: () => textSecret('secret', 'aws') }).complete();
  expect(completed.apiKey?.reveal()).toBe('sk-1');
  expect(completed.settings).toEqual({ aws_access_key_id: 'AKIA' });
  const secrets = Object.entries(completed.secrets).map(([name, secret]) => [name, secret.reveal()]);
  expect(secrets).toEqual([
    ['key', 'sk-1'],
    ['aws_secret_access_key', 'aws'],
  ]);
  expect(target).toMatchObject({ apiKey: null, settings: {}, secrets: {} });
});

test('one that cannot be had leaves nothing behind of the others, which fail later', async () => {
  const { promise, reject } = Promise.withResolvers<FetchedSecret>();
  const { complete } = rig({
    key: () => promise,
    aws_secret_access_key: () => {
      throw new SecretError('denied', 'other', 'is refused');
    },
  });
  const completing = (async () => complete())();
  await expect(completing).rejects.toMatchObject({ fault: 'denied' });
  // Without anybody who waits for it, this would end the process.
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
])('a reference %s gives nothing', (_which, references, code) => {
  const { complete } = rig({ key: () => textSecret('key', 'sk-1') }, references);
  expect(() => complete()).toThrow(expect.objectContaining({ code }));
});

test('a value that no header can hold is refused without being shown', () => {
  const { complete } = rig({ key: () => textSecret('key', 'canary canary') });
  expect(() => complete()).toThrow(expect.objectContaining({ fault: 'malformed' }));
  expect(() => complete()).not.toThrow('canary');
});
