import { isUtf8 } from 'node:buffer';
import { hash } from 'node:crypto';
import { setPriority } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { checkLine, lineTooLong, refusedLine, unreadable, type LineVerdict } from './lines/check-line.ts';
import { forEachLine, lineLength } from './json-lines.ts';
import { createUsageSum } from './usage-sum.ts';
import { wordsPerDigest, wordsPerRange, type SliceError, type SliceResult, type SliceTask } from './slice-task.ts';

// A lower priority than live work. On Linux each thread has its own priority; elsewhere this would slow the whole process.
if (process.platform === 'linux' && !isMainThread) setPriority(0, 10);

/**
 * Runs in a piscina thread: checks every line of a slice. An invalid line does not throw, but can get the thread
 * killed.
 */
export default function validateSlice({ bytes: shared, rules, withCustomIds }: SliceTask): SliceResult {
  const bytes = Buffer.from(shared.buffer, shared.byteOffset, shared.byteLength);
  const allUtf8 = isUtf8(bytes);
  const numbers = createNumbers();
  const errors: SliceError[] = [];
  const models = new Set<string | null>();
  const customIds: (string | null)[] = [];
  const prompts = new Set<string>();
  const usage = createUsageSum();
  const leaves: Buffer[] = [];
  let errorCount = 0;
  let timeouts = 0;
  let line = -1;

  const check = (start: number, end: number): LineVerdict => {
    if (!allUtf8 && !isUtf8(bytes.subarray(start, end))) return refusedLine(unreadable('It is not valid UTF-8.'));
    return checkLine(bytes.subarray(start, end), rules);
  };

  const lineCount = forEachLine(bytes, (start, end, blank) => {
    line += 1;
    const lengthBytes = lineLength(bytes, start, end);
    const tooLong = lengthBytes > rules.lineBytesMax;
    if (blank && !tooLong) return;
    const verdict = tooLong ? refusedLine(lineTooLong(lengthBytes, rules.lineBytesMax)) : check(start, end);
    numbers.add(start, end, line, verdict.customId);
    leaves.push(hashLeaf(bytes, start, end));
    if (withCustomIds) customIds.push(verdict.customId);
    if (models.size < 2) models.add(verdict.model);
    if (verdict.prompt !== undefined) prompts.add(verdict.prompt);
    if (rules.estimatesUsage === true && verdict.problem === null) usage.add(verdict);
    if (verdict.timedOut) timeouts += 1;
    if (verdict.problem === null) return;
    errorCount += 1;
    if (errors.length < rules.errorsMax) errors.push({ line, ...verdict.problem });
  });
  const [model = null] = models.size === 1 ? models : [];
  const found = {
    leaves: new Uint8Array(Buffer.concat(leaves)),
    errors,
    errorCount,
    model,
    prompts: [...prompts],
    usage: usage.take(),
    timeouts,
    customIds,
  };
  return { lineCount, ...numbers.take(), ...found };
}

let leaf = Buffer.alloc(65_536);

/** The hash of 0x00 and the line. A copy for a single call of `hash` takes half the time of an incremental hash. */
function hashLeaf(bytes: Buffer, start: number, end: number): Buffer {
  const sizeBytes = 1 + end - start;
  if (sizeBytes > leaf.length) leaf = Buffer.alloc(sizeBytes * 2);
  bytes.copy(leaf, 1, start, end);
  return hash('sha256', leaf.subarray(0, sizeBytes), 'buffer');
}

function createNumbers() {
  let ranges = new Uint32Array(wordsPerRange * 1_024);
  let digests = new Uint32Array(wordsPerDigest * 1_024);
  let count = 0;
  return {
    add(start: number, end: number, line: number, customId: string | null): void {
      if (wordsPerRange * (count + 1) > ranges.length) {
        ranges = grow(ranges);
        digests = grow(digests);
      }
      ranges[wordsPerRange * count] = start;
      ranges[wordsPerRange * count + 1] = end;
      ranges[wordsPerRange * count + 2] = line;
      if (customId !== null) {
        const digest = hash('sha256', customId, 'buffer');
        for (let word = 0; word < wordsPerDigest; word += 1)
          digests[wordsPerDigest * count + word] = digest.readUInt32LE(4 * word);
      }
      count += 1;
    },
    take: () => ({ ranges: ranges.slice(0, wordsPerRange * count), digests: digests.slice(0, wordsPerDigest * count) }),
  };
}

function grow(words: Uint32Array<ArrayBuffer>): Uint32Array<ArrayBuffer> {
  const larger = new Uint32Array(words.length * 2);
  larger.set(words);
  return larger;
}
