import { hash } from 'node:crypto';
import { emptyRoot, rootOfHashes } from '#libs/seal/merkle-tree.ts';

type HashedLine = { line: number; sha256: Buffer };

const leaf = Buffer.alloc(41); // 0x00 ‖ uint64be ‖ 32 bytes

/** The hash of a settled line as a leaf of its tree. */
export function hashResult({ line, sha256 }: HashedLine): Buffer {
  leaf.writeBigUInt64BE(BigInt(line), 1);
  sha256.copy(leaf, 9);
  return hash('sha256', leaf, 'buffer');
}

/**
 * The RFC 6962 Merkle root (hex) of settled lines in line order, over leaves uint64be(line) ‖ sha256(line bytes), so
 * that anyone can compute it again from the output and error files. `lines` must be sorted. An empty list gives the
 * hash of the empty string (RFC 6962 2.1).
 */
export function resultsRoot(lines: readonly HashedLine[]): string {
  const root = lines.length === 0 ? emptyRoot : rootOfHashes(Buffer.concat(lines.map(hashResult)));
  return root.toString('hex');
}
