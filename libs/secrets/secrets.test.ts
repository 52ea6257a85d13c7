import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { parseMasterKeys } from './master-key.ts';
import { createSecrets, SecretUnreadableError, type SealedSecret, type SecretMembers } from './secrets.ts';

const newMasterKey = () => parseMasterKeys(randomBytes(32).toString('hex'))[0];
const masterKey = newMasterKey();
const secrets = createSecrets({ masterKeys: [masterKey] });

/** The row that `store` would insert, captured on its way to the database. */
async function seal(members: Record<string, string>, owner = { workspaceId: 'ws_1', ownerId: 'vk_1' }) {
  const rows: SealedSecret[] = [];
  const tx = { insertInto: () => ({ values: (row: SealedSecret) => ({ execute: async () => rows.push(row) }) }) };
  const wrapped: SecretMembers = Object.fromEntries(
    Object.entries(members).map(([name, value]) => [name, new Secret(value)]),
  );
  await secrets.store({ tx, now: new Date(0) } as never, owner, wrapped);
  return rows[0] as SealedSecret;
}

const revealed = (members: SecretMembers) =>
  Object.fromEntries(Object.entries(members).map(([name, secret]) => [name, secret.reveal()]));

const flip = (bytes: Buffer, at: number): Buffer => {
  const changed = Buffer.from(bytes);
  changed[at] = (changed[at] ?? 0) ^ 1;
  return changed;
};

test('several members come back as they were stored', async () => {
  const members = { key: 'sk-1', aws_secret_access_key: 'x/y+z', vertex_service_account_json: '{"ü":"\\n"}' };
  expect(revealed(secrets.open(await seal(members)))).toEqual(members);
});

test('the same document is never sealed to the same bytes twice', async () => {
  const [a, b] = [await seal({ key: 'CANARY-1' }), await seal({ key: 'CANARY-1' })];
  expect(a.ciphertext.equals(b.ciphertext)).toBe(false);
  expect(a.wrapped_key.equals(b.wrapped_key)).toBe(false);
  expect(a.id).not.toBe(b.id);
  expect(Buffer.concat([a.ciphertext, a.wrapped_key]).includes('CANARY')).toBe(false);
});

test('a ciphertext that was moved to another row does not open', async () => {
  const [a, b] = [await seal({ key: 'a' }), await seal({ key: 'b' })];
  expect(() => secrets.open({ ...a, ciphertext: b.ciphertext })).toThrow(SecretUnreadableError);
  expect(() => secrets.open({ ...a, wrapped_key: b.wrapped_key })).toThrow(SecretUnreadableError);
  expect(() => secrets.open({ ...a, ciphertext: b.ciphertext, wrapped_key: b.wrapped_key })).toThrow(
    SecretUnreadableError,
  );
});

test.each([
  ['workspace_id', 'ws_2'],
  ['owner_id', 'vk_2'],
  ['id', 'secret_2'],
] as const)('a row whose %s was changed does not open', async (column, value) => {
  const row = await seal({ key: 'a' });
  expect(() => secrets.open({ ...row, [column]: value })).toThrow(SecretUnreadableError);
});

test('a flipped bit anywhere is noticed', async () => {
  const row = await seal({ key: 'some-key' });
  for (let at = 0; at < row.ciphertext.length; at += 1) {
    expect(() => secrets.open({ ...row, ciphertext: flip(row.ciphertext, at) })).toThrow(SecretUnreadableError);
  }
  for (let at = 0; at < row.wrapped_key.length; at += 1) {
    expect(() => secrets.open({ ...row, wrapped_key: flip(row.wrapped_key, at) })).toThrow(SecretUnreadableError);
  }
});

test('truncated values do not open', async () => {
  const row = await seal({ key: 'some-key' });
  for (const length of [0, 1, 20, 28, row.ciphertext.length - 1]) {
    expect(() => secrets.open({ ...row, ciphertext: row.ciphertext.subarray(0, length) })).toThrow(
      SecretUnreadableError,
    );
  }
});

test('another master key does not open it, not even under the same id', async () => {
  const row = await seal({ key: 'CANARY-2' });
  const other = newMasterKey();
  expect(() => createSecrets({ masterKeys: [other] }).open(row)).toThrow(/wrapped by the master key/);
  const disguised = createSecrets({ masterKeys: [{ ...other, id: masterKey.id }] });
  expect(() => disguised.open(row)).toThrow(SecretUnreadableError);
  expect(() => disguised.open(row)).not.toThrow(/CANARY/);
});
