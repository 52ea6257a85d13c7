import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { resultsRoot } from './results-root.ts';

type Line = { line: number; data: Buffer };

const sha256 = (...parts: Uint8Array[]): Buffer => createHash('sha256').update(Buffer.concat(parts)).digest();

/**
 * RFC 6962 2.1, written out: MTH(D[n]) = SHA-256(0x01 ‖ MTH(D[0:k]) ‖ MTH(D[k:n])), k the largest power of two below n.
 */
function rootByTheBook(entries: readonly Buffer[]): Buffer {
  if (entries.length === 0) return sha256();
  const [first] = entries;
  if (entries.length === 1 && first) return sha256(Buffer.from([0]), first);
  let k = 1;
  while (k * 2 < entries.length) k *= 2;
  return sha256(Buffer.from([1]), rootByTheBook(entries.slice(0, k)), rootByTheBook(entries.slice(k)));
}

const rootOf = (lines: readonly Line[]): string =>
  resultsRoot(lines.map(({ line, data }) => ({ line, sha256: sha256(data) })));

function entryOf({ line, data }: Line): Buffer {
  const number = Buffer.alloc(8);
  number.writeBigUInt64BE(BigInt(line));
  return Buffer.concat([number, sha256(data)]);
}

test('the reference agrees with the published roots of RFC 6962 trees', () => {
  // The test data of certificate-transparency-go (merkletree): the inputs are these eight entries, followed by the
  // roots of the first 0, 1, 2 … 8.
  const inputs = ['', '00', '10', '2021', '3031', '40414243', '5051525354555657', '606162636465666768696a6b6c6d6e6f'];
  const roots = [
    'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855',
    '6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d',
    'fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125',
    'aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77',
    'd37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7',
    '4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4',
    '76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef',
    'ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c',
    '5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328',
  ];
  const entries = inputs.map((hex) => Buffer.from(hex, 'hex'));
  expect(roots.map((_, size) => rootByTheBook(entries.slice(0, size)).toString('hex'))).toEqual(roots);
});

test('a root is that of RFC 6962 over line number and SHA-256 of each line, for any number of lines', () => {
  const lines = fc
    .uniqueArray(fc.record({ line: fc.nat(), data: fc.uint8Array({ maxLength: 40 }) }), {
      maxLength: 70,
      selector: ({ line }) => line,
    })
    .map((some) =>
      some.map(({ line, data }) => ({ line, data: Buffer.from(data) })).toSorted((a, b) => a.line - b.line),
    );
  fc.assert(
    fc.property(lines, (some) => {
      expect(rootOf(some)).toBe(rootByTheBook(some.map(entryOf)).toString('hex'));
    }),
  );
});

test.each(Array.from({ length: 20 }, (_, size) => size))('a tree of %d lines has the root of RFC 6962', (size) => {
  const lines = Array.from({ length: size }, (_, line) => ({ line, data: Buffer.from(`line ${line}`) }));
  expect(rootOf(lines)).toBe(rootByTheBook(lines.map(entryOf)).toString('hex'));
});

// Fixed values: results_root is in the log, and auditors can have copies, so it must never change.
test('the root of the same lines never changes', () => {
  const line = (number: number, text: string): Line => ({ line: number, data: Buffer.from(text) });
  expect(rootOf([])).toBe('e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855');
  expect(rootOf([line(0, '{}')])).toBe('ac1d362088e03ad8af3fa520cd31b43b6d352f9a2e82e6e56ac705d8de800f1a');
  expect(rootOf([line(0, '{}'), line(1, '{"a":1}'), line(4_294_967_296, 'ü')])).toBe(
    'e19e1a36f7af97644c94e6b52f5cc8008006d27c74a31c9768bf7419b6341575',
  );
});

test('another order, number or byte gives another root', () => {
  const lines = [0, 1, 2].map((line) => ({ line, data: Buffer.from(`line ${line}`) }));
  const root = rootOf(lines);
  expect(rootOf(lines.toReversed())).not.toBe(root);
  expect(rootOf(lines.map(({ line, data }) => ({ line: line + 1, data })))).not.toBe(root);
  expect(rootOf(lines.with(1, { line: 1, data: Buffer.from('line  1') }))).not.toBe(root);
  expect(rootOf(lines.slice(0, 2))).not.toBe(root);
});
