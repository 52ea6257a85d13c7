import { createPrivateKey, createSecretKey, generateKeyPairSync } from 'node:crypto';
import { expect, test } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { createAuditKeys } from './audit-keys.ts';
import { formatCheckpoint, formatProof, parseCheckpoint, parseProof } from './checkpoint.ts';
import { createSigner, openNote, parseVerifier, signNote, verifierText } from './signed-note.ts';
import { openCheckpoint, parseOrigin, treeOrigin } from './tree-names.ts';

const newSigner = (name: string) => createSigner(name, generateKeyPairSync('ed25519').privateKey);
const root = Buffer.alloc(32, 7);

test('the note in the documentation of Go opens', () => {
  // https://pkg.go.dev/golang.org/x/mod/sumdb/note
  const key = 'PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW';
  const text = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n";
  const signature = 'x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=';
  expect(openNote(`${text}\n— PeterNeumann ${signature}\n`, [parseVerifier(key)])).toBe(text);
  expect(verifierText(parseVerifier(key))).toBe(key);
});

test('a note is opened with the key of any of its signers, and only unchanged', () => {
  const [old, next, stranger] = [newSigner('log'), newSigner('log'), newSigner('log')];
  const note = signNote('text\n', [next, old]);
  for (const signer of [old, next]) expect(openNote(note, [parseVerifier(verifierText(signer))])).toBe('text\n');
  expect(() => openNote(note, [stranger])).toThrow('has no signature by log+');
  expect(() => openNote(note.replace('text', 'test'), [old])).toThrow('The signature of log is wrong.');
  expect(() => openNote(note.slice(0, -1), [old])).toThrow('not a signed note');
  expect(() => openNote('text\n', [old])).toThrow('not a signed note');
});

test('a verifier key with a wrong ID or type is refused', () => {
  const text = verifierText(newSigner('log'));
  expect(() => parseVerifier(text.replace('log', 'other'))).toThrow('not the verifier key');
  expect(() => parseVerifier('log')).toThrow('not the verifier key');
});

test('a checkpoint has an origin, a size and a root', () => {
  const checkpoint = { origin: 'example.com/log', size: 20_852_163, root };
  const text = formatCheckpoint(checkpoint);
  expect(text).toBe(`example.com/log\n20852163\n${root.toString('base64')}\n`);
  expect(parseCheckpoint(text)).toEqual(checkpoint);
  expect(parseCheckpoint(`${text}extension\n`)).toEqual(checkpoint);
  for (const wrong of ['', 'a\n', text.replace('208', '0208'), text.slice(0, -1), `\n${text}`, text.replace('=', '')]) {
    expect(() => parseCheckpoint(wrong)).toThrow('not a checkpoint');
  }
});

test('a proof comes back as it was written', () => {
  const checkpoint = signNote(formatCheckpoint({ origin: 'log', size: 3, root }), [newSigner('log')]);
  for (const proof of [
    { index: 0, hashes: [], checkpoint, extra: undefined },
    { index: 2, hashes: [root, root], checkpoint, extra: Buffer.from('more') },
  ]) {
    expect(parseProof(formatProof(proof))).toEqual(proof);
  }
  expect(() => parseProof(checkpoint)).toThrow('not a proof');
});

test('trees have numbers, and the first one has the name of the log', () => {
  expect(treeOrigin('example.com/log', 1)).toBe('example.com/log');
  expect(parseOrigin('example.com/log')).toEqual({ name: 'example.com/log', tree: 1 });
  expect(parseOrigin(treeOrigin('example.com/log', 12))).toEqual({ name: 'example.com/log', tree: 12 });
  const signer = newSigner('log');
  const note = signNote(formatCheckpoint({ origin: 'log/tree/2', size: 1, root }), [signer]);
  expect(openCheckpoint(note, () => [signer])).toMatchObject({ name: 'log', tree: 2, size: 1 });
});

const masterKey = (byte: number) => ({ id: '', key: createSecretKey(Buffer.alloc(32, byte)) });

test('each master key makes the same key again, and every one of them signs', () => {
  const [newest, old] = createAuditKeys([masterKey(1), masterKey(2)], undefined)('log');
  expect(createAuditKeys([masterKey(2)], undefined)('log').map(verifierText)).toEqual([verifierText(old as never)]);
  expect(verifierText(newest as never)).not.toBe(verifierText(old as never));
});

test('keys in PEM replace the derived ones', () => {
  const pem = generateKeyPairSync('ed25519').privateKey.export({ format: 'pem', type: 'pkcs8' });
  const other = generateKeyPairSync('ed25519').privateKey.export({ format: 'pem', type: 'pkcs8' });
  const keys = createAuditKeys([masterKey(1)], new Secret(pem + other))('log');
  expect(keys.map(verifierText)).toEqual(
    [pem, other].map((each) => verifierText(createSigner('log', createPrivateKey(each)))),
  );
  const rsa = generateKeyPairSync('rsa', { modulusLength: 2_048 }).privateKey.export({ format: 'pem', type: 'pkcs8' });
  for (const wrong of ['', 'x', pem.slice(40), rsa]) {
    expect(() => createAuditKeys([masterKey(1)], new Secret(wrong))).toThrow(
      /^SLUICE_AUDIT_KEY must be one or more Ed25519/,
    );
  }
});
