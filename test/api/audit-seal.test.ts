import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { hashLeaf, hashNode, isIncluded } from '#libs/seal/merkle-tree.ts';
import { parseVerifier } from '#libs/seal/signed-note.ts';
import { createTreeProofs, parseBundle, tilePath } from '#libs/seal/tiles.ts';
import { openCheckpoint } from '#libs/seal/tree-names.ts';
import { eventually } from '#test/eventually.ts';
import { chatLines, toJsonl } from './batch-kit.ts';
import { setUp } from './cli-kit.ts';
import { createWorkspace } from './second-workspace.ts';

// The seal of the event log, as somebody outside of Sluice reads it.

const kept = await mkdtemp(path.join(tmpdir(), 'sluice-kept-'));
afterAll(() => rm(kept, { recursive: true, force: true }));
const at = setUp({ environment: { SLUICE_AUDIT_PUBLISH: `file:${kept}` } });

const get = async (file: string, key = at.platform.adminKey): Promise<Response> =>
  await fetch(`${at.platform.baseUrl}/audit/${file}`, { headers: { authorization: `Bearer ${key}` } });
const text = async (file: string): Promise<string> => await (await get(file)).text();
const read = async (file: string): Promise<Buffer | null> => {
  const response = await get(file);
  return response.status === 404 ? null : Buffer.from(await response.arrayBuffer());
};

const rename = async (name: string): Promise<string> => {
  const headers = { authorization: `Bearer ${at.platform.adminKey}`, 'content-type': 'application/json' };
  const body = JSON.stringify({ name, slug: name, config: { retry: { attempts: 2 } } });
  const made = await fetch(`${at.platform.baseUrl}/configs`, { method: 'POST', headers, body });
  const { id } = (await made.json()) as { id: string };
  const events = await fetch(`${at.platform.baseUrl}/events?stream=${id}`, { headers });
  return ((await events.json()) as { data: { sha256: string }[] }).data[0]?.sha256 ?? '';
};

/** The newest checkpoint that covers the event with this hash, and the event's entry. */
async function sealed(sha256: string) {
  const found = await eventually(
    async () => {
      const newest = await read('checkpoint');
      if (newest === null) return null;
      const keys = (await text('key')).trim().split('\n').map(parseVerifier);
      const checkpoint = openCheckpoint(newest.toString(), () => keys);
      const bundle = await read(
        tilePath('entries', Math.floor((checkpoint.size - 1) / 256), ((checkpoint.size - 1) % 256) + 1),
      );
      const entries = bundle === null ? [] : parseBundle(bundle);
      const place = entries.findIndex((each) => each.includes(sha256));
      return { checkpoint, entry: entries[place], index: Math.floor((checkpoint.size - 1) / 256) * 256 + place };
    },
    (each) => each?.entry !== undefined,
  );
  return found as NonNullable<typeof found>;
}

test('a change is sealed, and its entry has a proof that a client can check', async () => {
  const { checkpoint, entry, index } = await sealed(await rename('sealed-config'));
  const proof = await createTreeProofs(read, checkpoint.size).inclusion(index);
  expect(isIncluded(hashLeaf(entry as Buffer), index, proof, checkpoint)).toBe(true);
  const { headers } = await get('checkpoint');
  expect(headers.get('content-type')).toBe('text/plain; charset=utf-8');
  expect(headers.get('cache-control')).toBe('no-store');
  expect(await text('checkpoint?tree=1')).toContain(`${checkpoint.origin}\n`);
});

test('checkpoints are published, and metrics show the lag of the seal', async () => {
  const { checkpoint } = await sealed(await rename('published-config'));
  const published = () => readFile(path.join(kept, 'checkpoint'), 'utf8').catch(() => '');
  await eventually(published, (note) => Number(note.split('\n')[1]) >= checkpoint.size);
  const metrics = await (await fetch(new URL('/metrics', at.platform.baseUrl))).text();
  expect(metrics).toMatch(/^sluice_audit_publish_lag_seconds \d/m);
  expect(metrics).toMatch(/^sluice_subscriber_lag_seconds\{subscriber="seal"\} \d/m);
});

test('the seal of all workspaces is for those who act for the organisation', async () => {
  const other = await createWorkspace(at.platform);
  for (const file of ['checkpoint', 'key', 'tile/0/000', 'tile/entries/000']) {
    const response = await get(file, other);
    expect(response.status).toBe(403);
    expect(await response.text()).toContain('organisation_key_required');
  }
});

test('a path that is not one of a tile has nothing', async () => {
  for (const file of [
    'tile/0/999',
    'tile/0/x000/x000/999',
    'tile/64/000',
    'tile/0/..%2Fx',
    'tile/0/000.p/256',
    'checkpoint?tree=9',
  ]) {
    expect((await get(file)).status).toBe(404);
  }
});

test('a batch has the root over the lines of its input in the log', async () => {
  const content = toJsonl(chatLines(3, { model: '@simulator/sim-small' }));
  await at.write('in.jsonl', content);
  const run = await at.cli.run(['batch', 'run', 'in.jsonl', '-o', 'out.jsonl']);
  const [id = ''] = /batch_[0-9a-f]{32}/.exec(run.stderr) ?? [];
  const response = await fetch(`${at.platform.baseUrl}/events?stream=${id}&type=batch.validated`, {
    headers: { authorization: `Bearer ${at.platform.adminKey}` },
  });
  const { data: events } = (await response.json()) as { data: { data: { input_root: string } }[] };
  const leaves = content
    .trim()
    .split('\n')
    .map((line) => hashLeaf(Buffer.from(line)));
  const [first, second, third] = leaves as [Buffer, Buffer, Buffer];
  expect(events[0]?.data.input_root).toBe(hashNode(hashNode(first, second), third).toString('hex'));

  const prove = async (...args: string[]) =>
    await at.cli.run(['audit', 'prove', ...args, '--out', 'line.proof'], { env: at.platform.environment });
  const proved = await eventually(
    () => prove('--batch', id, '--line', '2', '--json'),
    ({ stdout }) => stdout.includes('"result":"whole"'),
  );
  expect(JSON.parse(proved.stdout)).toEqual({ line: 2, result: 'whole', request: 'whole' });
  expect(await prove('--batch', id)).toMatchObject({ code: 2, stderr: expect.stringContaining('Use one of --event') });
  const key = (await at.cli.run(['audit', 'key'])).stdout.trim();
  const program = path.resolve('apps/audit-verify/audit-verify.mjs');
  const file = path.join(at.cli.folder, 'line.proof');
  const shown = execFileSync(process.execPath, [program, file, '--key', key], { encoding: 'utf8' });
  expect(shown).toContain(`OK: line 2 of ${id}`);
  expect(shown).toContain(`The input: ${content.split('\n')[1]}`);
});

test('sluice audit watch follows a log that grows, and refuses one that was changed', async () => {
  const { checkpoint } = await sealed(await rename('watched-config'));
  const shown = await at.cli.run(['audit', 'key']);
  expect(shown).toMatchObject({ code: 0, stdout: expect.stringMatching(/^sluice\/store_\w+\+[0-9a-f]{8}\+\S+\n$/) });
  const watch = async () => await at.cli.run(['audit', 'watch', '--verifier', shown.stdout.trim()]);
  expect(await at.cli.run(['audit', 'watch', '--verifier', 'wrong'])).toMatchObject({ code: 2, stdout: '' });
  const first = await watch();
  expect(first).toMatchObject({ code: 0, stderr: '' });
  expect((JSON.parse(first.stdout) as { size: number }).size).toBeGreaterThanOrEqual(checkpoint.size);
  const before = await at.read('sluice-audit.json');

  await sealed(await rename('later-config'));
  expect(await watch()).toMatchObject({ code: 0, stderr: '' });

  // Another log under the same name and key, as after a change of the database and of the whole folder.
  await at.platform.database.pool.query(
    `update seal_workspace set number = number + 1;
     update seal set tree = 0, size = 0, hashes = '', bundle = '', checkpoint = ''`,
  );
  await at.write('sluice-audit.json', before);
  await rm(path.join(at.platform.dataDir, 'blobs', 'audit'), { recursive: true, force: true });
  await sealed(await rename('forged-config'));
  const refused = await watch();
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining('does not continue the checkpoint') });
  expect(await at.read('sluice-audit.json')).toBe(before);
});
