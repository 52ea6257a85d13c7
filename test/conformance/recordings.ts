import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { Lines, Whole, Wire } from './conformance-case.ts';

// Beside the project, or beside the folder that holds its worktrees.
const folder = ['../shared', '../../shared']
  .map((shared) => path.resolve(import.meta.dirname, '../..', shared, 'fixtures/providers'))
  .find((candidate) => existsSync(candidate));

const hasRecordings = folder !== undefined;

/** false: a recording that is not here; the tests that need it are skipped. */
export function isHere(source: Whole | Lines): boolean {
  return hasRecordings || !('fixture' in source);
}

/** The bytes of a whole answer, as the provider sent them. */
export function wholeBytes(source: Whole): Buffer {
  if ('fixture' in source) return readRecording(source.fixture);
  return Buffer.from(typeof source.body === 'string' ? source.body : JSON.stringify(source.body));
}

/** The events of a stream, one JSON text each. */
export function linesOf(source: Lines): string[] {
  if (!('fixture' in source)) return source.lines.map(asLine);
  const text = readRecording(source.fixture).toString();
  return text.split('\n').filter((line) => line.trim() !== '');
}

function readRecording(name: string): Buffer {
  if (folder === undefined) throw new Error(`there is no ../shared/fixtures/providers to read ${name} from`);
  return readFileSync(path.join(folder, name));
}

export function asLine(line: unknown): string {
  return typeof line === 'string' ? line : JSON.stringify(line);
}

/** A complete stream on the wire, one buffer an event. */
export function framesOf(wire: Wire, source: Lines): Buffer[] {
  const frames = linesOf(source).map((line) => wire.frame(line));
  return wire.end === undefined ? frames : [...frames, wire.end];
}
