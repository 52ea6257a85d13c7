import { mkdtemp, mkdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { authForms } from '#libs/contracts/secret-references.ts';
import { secretNames } from '#libs/contracts/virtual-keys.ts';
import { hasReference, readSpec, resolveReferences, writeSpec } from './record-files.ts';
import { appliedKinds, type RecordKind } from './record-kinds.ts';
import { writeDocument } from './write-document.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-records-'));
  await mkdir(path.join(folder, 'allowed'));
  await writeFile(path.join(folder, 'allowed/key'), 'sk-allowed\n');
  await writeFile(path.join(folder, 'allowed/large'), 'x'.repeat(70_000));
  await writeFile(path.join(folder, 'id_rsa'), 'private');
  await symlink(path.join(folder, 'id_rsa'), path.join(folder, 'allowed/link'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const piece = fc.constantFrom(
  '$',
  '{',
  '}',
  '${',
  '$${',
  'env:HOME',
  '${env:HOME}',
  '${file:/etc/passwd}',
  'a',
  ' ',
  '\n',
  'word '.repeat(20),
);
const texts = fc.oneof(
  fc.array(piece, { maxLength: 6 }).map((pieces) => pieces.join('')),
  fc.string(),
);
const { json } = fc.letrec((tie) => ({
  json: fc.oneof(
    { maxDepth: 3 },
    texts,
    fc.integer(),
    fc.boolean(),
    fc.constant(null),
    fc.array(tie('json'), { maxLength: 3 }),
    fc.dictionary(
      texts.filter((name) => name !== '__proto__'),
      tie('json'),
      { maxKeys: 3 },
    ),
  ),
}));
const specs = fc.dictionary(fc.constantFrom('string', 'key', 'config', 'parameters', 'checks', 'tags', 'name'), json);
const openKinds = appliedKinds.filter(({ applied }) => applied?.areCredentials !== true);
const kindNamed = (name: string): RecordKind => appliedKinds.find(({ kind }) => kind === name) as RecordKind;

test('whatever a record contains, its exported file gives it back and refers to no variable or file', async () => {
  await fc.assert(
    fc.asyncProperty(fc.constantFrom(...openKinds), specs, async (kind, spec) => {
      const read = readSpec(kind, parse(await writeDocument(writeSpec(spec))) as Record<string, unknown>);
      expect(read).toEqual(spec);
      expect(hasReference(read)).toBe(false);
    }),
    {
      examples: [
        [kindNamed('config'), { string: '\n \n' }],
        [kindNamed('config'), { string: `\${env:A} ${'x'.repeat(60)}\n \n-\r` }],
      ],
    },
  );
});

test.each(
  openKinds.flatMap(({ kind }) =>
    ['description', 'string', 'tags/key', 'parameters/key', 'config/x/headers'].map((at) => ({ kind, at })),
  ),
)('a file of a $kind cannot refer to a secret in $at, which others can read', ({ kind, at }) => {
  const spec = at
    .split('/')
    .reduceRight<unknown>((value, name) => ({ [name]: value }), '${file:/home/admin/.ssh/id_rsa}');
  expect(() => readSpec(kindNamed(kind), spec as Record<string, unknown>)).toThrow('is not a secret');
});

test.each([
  ['virtual_key', ['key', ...secretNames]],
  ['integration', ['key', ...secretNames.map((name) => `configurations/${name}`)]],
  [
    'secret_reference',
    Object.values(authForms)
      .flatMap((known) => Object.values(known?.forms ?? {}).flatMap(({ secrets }) => secrets))
      .map((name) => `auth_config/${name}`),
  ],
])('every credential of a %s must be a reference', (kind, places) => {
  for (const place of places) {
    const specWith = (text: string) =>
      place.split('/').reduceRight<unknown>((value, name) => ({ [name]: value }), text) as Record<string, unknown>;
    expect(() => readSpec(kindNamed(kind), specWith('sk-plain'))).toThrow('must be a reference');
    expect(hasReference(readSpec(kindNamed(kind), specWith('${env:HOME}')))).toBe(true);
  }
});

test('webhooks of guardrails and configs can refer to secrets', () => {
  const parameters = { webhookURL: '${env:HOOK}', headers: { authorization: '${env:HOOK_KEY}', 'x-plain': 'a' } };
  expect(hasReference(readSpec(kindNamed('guardrail'), { checks: [{ id: 'default.webhook', parameters }] }))).toBe(
    true,
  );
  const input_guardrails = [{ 'default.webhook': parameters, deny: true }];
  expect(hasReference(readSpec(kindNamed('config'), { config: { targets: [{ input_guardrails }] } }))).toBe(true);
  expect(() => readSpec(kindNamed('config'), { config: { override_params: { input_guardrails } } })).toThrow(
    'is not a secret',
  );
});

test('a file is read only if it is in an allowed folder, also through a link, and only if it is small', async () => {
  const read = async (name: string, folders: string[]) => {
    const spec = readSpec(kindNamed('virtual_key'), { key: `\${file:${path.join(folder, name)}}` });
    return await resolveReferences(spec, { folders }).catch((error: Error) => error.message);
  };
  const allowed = [path.join(folder, 'allowed')];
  expect(await read('allowed/key', allowed)).toEqual({ key: 'sk-allowed' });
  expect(await read('allowed/key', [])).toContain('is not in an allowed folder');
  expect(await read('allowed/link', allowed)).toContain('is not in an allowed folder');
  expect(await read('id_rsa', allowed)).toContain('is not in an allowed folder');
  expect(await read('allowed/../id_rsa', allowed)).toContain('is not in an allowed folder');
  expect(await read('allowed/large', allowed)).toContain('larger than 64 KiB');
  expect(await read('allowed/none', allowed)).toContain('empty or not readable');
});
