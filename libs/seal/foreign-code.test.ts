import { execFile } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { formatCheckpoint } from './checkpoint.ts';
import { createSigner, signNote, verifierText } from './signed-note.ts';
import { createTreeProofs, emptyEdge, growTree, rootOfEdge } from './tiles.ts';

// Code that others wrote accepts the files of the seal, and refuses changed ones.

const fixtures = path.resolve(import.meta.dirname, '../../test/fixtures');
const fsckModule = 'github.com/transparency-dev/tessera/cmd/fsck@v1.0.4';

const signer = createSigner('example.com/log', generateKeyPairSync('ed25519').privateKey);
const entries = Array.from({ length: 70_000 }, (_entry, index) => Buffer.from(`{"number":${index}}`));
const oldSize = 300;

let folder: string;
let log: string;
/** Built programs; null, with the reason, where they cannot be built. */
let verifier: string | null = null;
let fsck: string | null = null;
let rust: string | null = null;
let whyMissing = '';
let whyNoRust = '';

type Result = { code: number; output: string };

const run = (command: string, args: readonly string[], options: { cwd?: string; input?: string; bin?: string } = {}) =>
  new Promise<Result>((resolve) => {
    const env = {
      ...process.env,
      GOTOOLCHAIN: 'local',
      GOFLAGS: '-mod=mod',
      ...(options.bin === undefined ? {} : { GOBIN: options.bin }),
    };
    const child = execFile(
      command,
      args,
      { cwd: options.cwd, env, maxBuffer: 64 * 1_048_576 },
      (error, stdout, stderr) => {
        const code = error === null ? 0 : typeof error.code === 'number' ? error.code : 127;
        resolve({ code, output: `${stdout}${stderr}${code === 127 ? (error as Error).message : ''}` });
      },
    );
    child.stdin?.on('error', () => undefined).end(options.input ?? '');
  });

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-foreign-'));
  log = path.join(folder, 'log');
  await writeLog(log);
  await cp(path.join(fixtures, 'audit-verifier'), path.join(folder, 'program'), { recursive: true });
  const built = path.join(folder, 'verifier');
  const made = await run('go', ['build', '-o', built, '.'], { cwd: path.join(folder, 'program') });
  if (made.code === 0) verifier = built;
  else whyMissing = made.output;
  const installed = made.code === 0 ? await run('go', ['install', fsckModule], { cwd: folder, bin: folder }) : made;
  if (installed.code === 0) fsck = path.join(folder, 'fsck');
  else whyMissing ||= installed.output;
  await cp(path.join(fixtures, 'audit-verifier-rust'), path.join(folder, 'crate'), { recursive: true });
  // The crates are compiled once and kept.
  const target = path.resolve(import.meta.dirname, '../../node_modules/.cache/audit-verifier-rust');
  const cargo = ['build', '--locked', '--quiet', '--target-dir', target];
  const compiled = await run('cargo', cargo, { cwd: path.join(folder, 'crate') });
  if (compiled.code === 0) rust = path.join(target, 'debug/audit-verifier');
  else whyNoRust = compiled.output;
}, 600_000);
afterAll(() => rm(folder, { recursive: true, force: true }));

async function writeLog(target: string): Promise<void> {
  let edge = emptyEdge;
  for (const part of [entries.slice(0, oldSize), entries.slice(oldSize)]) {
    const grown = growTree(edge, part);
    edge = grown.edge;
    for (const { path: file, bytes } of grown.files) {
      await mkdir(path.dirname(path.join(target, file)), { recursive: true });
      await writeFile(path.join(target, file), bytes);
    }
  }
  const checkpoint = formatCheckpoint({ origin: signer.name, size: edge.size, root: rootOfEdge(edge) });
  await writeFile(path.join(target, 'checkpoint'), signNote(checkpoint, [signer]));
}

const toBase64 = (hashes: readonly Buffer[]): string[] => hashes.map((each) => each.toString('base64'));

/** What the program of the Go checksum database checks. */
async function readProofs(index: number) {
  const proofs = createTreeProofs(
    async (file) => await readFile(path.join(log, file)).catch(() => null),
    entries.length,
  );
  return {
    index,
    entry: String(entries[index]),
    inclusion: toBase64(await proofs.inclusion(index)),
    old_size: oldSize,
    old_root: rootOfEdge(growTree(emptyEdge, entries.slice(0, oldSize)).edge).toString('base64'),
    consistency: toBase64(await proofs.consistency(oldSize)),
  };
}

type Proofs = Awaited<ReturnType<typeof readProofs>>;

/** A program accepts the log with these proofs, and refuses them with another entry, size or key. */
async function expectChecked(program: string, format: (proofs: Proofs) => string): Promise<void> {
  const key = verifierText(signer);
  const check = async (proofs: Proofs, text = key): Promise<Result> =>
    await run(program, [log, text], { input: format(proofs) });
  for (const index of [0, 255, 256, 69_999]) {
    expect(await check(await readProofs(index))).toEqual({ code: 0, output: 'accepted\n' });
  }
  const proofs = await readProofs(17);
  expect((await check({ ...proofs, entry: 'other' })).code).toBe(1);
  expect((await check({ ...proofs, old_size: 301 })).code).toBe(1);
  const other = createSigner('example.com/log', generateKeyPairSync('ed25519').privateKey);
  expect((await check(proofs, verifierText(other))).code).toBe(1);
}

test('the Go checksum database accepts the checkpoint, the tiles and the proofs', async (context) => {
  if (verifier === null) return context.skip(`Go or its modules are missing: ${whyMissing}`);
  await expectChecked(verifier, JSON.stringify);
});

test('the Rust crates signed_note and tlog_tiles accept them too', async (context) => {
  if (rust === null) return context.skip(`Rust or its crates are missing: ${whyNoRust}`);
  await expectChecked(rust, ({ index, entry, old_size: size, old_root: root, inclusion, consistency }) =>
    [index, entry, size, root, inclusion.join(' '), consistency.join(' ')].join('\n'),
  );
});

test('fsck of Tessera accepts the folder, and refuses a changed entry, tile or checkpoint', async (context) => {
  if (fsck === null) return context.skip(`Go or its modules are missing: ${whyMissing}`);
  const keyFile = path.join(folder, 'key');
  await writeFile(keyFile, verifierText(signer));
  // It exits with 0 whatever it finds, and waits for ever on an error with fewer workers.
  const isAccepted = async (target: string): Promise<boolean> => {
    const args = [`--storage_url=file://${target}`, `--public_key=${keyFile}`, '--N=16', '--ui=false'];
    const { output } = await run(fsck as string, args);
    return output.includes("Successfully fsck'd");
  };
  expect(await isAccepted(log)).toBe(true);
  for (const file of ['tile/entries/100', 'tile/0/100', 'tile/1/000', 'tile/entries/273.p/112', 'checkpoint']) {
    const changed = path.join(folder, 'changed');
    await cp(log, changed, { recursive: true });
    const bytes = await readFile(path.join(changed, file));
    bytes[40] = (bytes[40] ?? 0) ^ 1;
    await writeFile(path.join(changed, file), bytes);
    expect({ file, isAccepted: await isAccepted(changed) }).toEqual({ file, isAccepted: false });
    await rm(changed, { recursive: true });
  }
});
