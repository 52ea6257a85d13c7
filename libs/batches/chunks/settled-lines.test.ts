import { expect, test } from 'vitest';
import { createRandom } from '#test/faults/random.ts';
import { countSettled, isSettled, noneSettled, settle, settledOfPart, unsettledLines } from './settled-lines.ts';

test('the bits of a chunk are the set of its settled lines, and so are those of its parts', () => {
  const random = createRandom(3);
  for (let round = 0; round < 200; round += 1) {
    const range = { first_line: random.between(1, 1_000), line_count: random.between(1, 40) };
    const chunk = { ...range, settled: noneSettled(range.line_count) };
    const lines = Array.from({ length: range.line_count }, (_value, index) => range.first_line + index);
    const settled = new Set(lines.filter(() => random.chance(50)));
    for (const line of settled) settle(chunk, line);
    expect(lines.filter((line) => isSettled(chunk, line))).toEqual([...settled]);
    expect(countSettled(chunk.settled)).toBe(settled.size);
    expect(unsettledLines(chunk)).toEqual(lines.filter((line) => !settled.has(line)));
    const part = { first_line: random.pick(lines), line_count: 0 };
    part.line_count = random.between(0, range.first_line + range.line_count - part.first_line);
    const ofPart = { ...part, settled: settledOfPart(chunk, part) };
    expect(unsettledLines(ofPart)).toEqual(
      unsettledLines(chunk).filter((line) => line >= part.first_line && line < part.first_line + part.line_count),
    );
  }
});
