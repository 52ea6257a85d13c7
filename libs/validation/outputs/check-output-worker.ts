import { setPriority } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import type { ErrorObject } from 'ajv';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import { finishesInTime } from '#libs/threads/run-within.ts';
import { readContents, type CheckedOperation } from './answer-contents.ts';
import { findSchema } from './output-schemas.ts';

// Lower priority than live work. On Linux each thread has its own priority; elsewhere this would slow down the whole
// process.
if (process.platform === 'linux' && !isMainThread) setPriority(0, 5);

export type OutputWork = {
  operation: CheckedOperation;
  /** The JSON of the request's `response_format`, or of its `text` for responses. */
  format: Uint8Array;
  answer: Uint8Array;
};

/**
 * `unchecked`: the request has no schema, or its answer no content that the schema applies to. `isFinal`: another answer
 * would most likely fail in the same way.
 */
export type OutputVerdict =
  | { kind: 'unchecked' }
  | { kind: 'passed' }
  | { kind: 'failed'; problem: string; isFinal: boolean };

/** No model writes this much. The limit bounds the time and the memory to parse an answer. */
const answerBytesMax = 4_194_304;
const timeoutMs = 250;
const pathCharsMax = 300;
const problemCharsMax = 600;

/** Runs in a thread: checks an answer against the JSON Schema of its request. */
export default function checkOutput({ operation, format, answer }: OutputWork): OutputVerdict {
  const schema = findSchema(operation, format);
  if (schema === null) return { kind: 'unchecked' };
  if ('unusable' in schema) return failed(`The JSON Schema cannot be used: ${schema.unusable}.`, true);
  if (answer.length > answerBytesMax) return failed(`The answer is larger than ${answerBytesMax} bytes.`, true);
  const contents = readContents(operation, JSON.parse(Buffer.from(answer).toString()));
  if (contents.length === 0) return { kind: 'unchecked' };
  let found: OutputVerdict = { kind: 'passed' };
  const check = (): void => {
    for (const { name, text, isCut } of contents) {
      const problem = findProblem(text, schema.validate);
      if (problem === null) continue;
      const cut = isCut ? ' The answer was cut off.' : '';
      found = failed(`${name === '' ? '' : `In ${name}: `}${problem}.${cut}`, isCut);
      return;
    }
  };
  try {
    return finishesInTime(() => check, timeoutMs) ? found : failed(`The check took longer than ${timeoutMs} ms.`, true);
  } catch (error) {
    // A recursive schema can follow JSON deeper than the stack allows.
    if (error instanceof RangeError) return failed('The JSON is nested too deeply to be checked.', true);
    throw error;
  }
}

const failed = (problem: string, isFinal: boolean): OutputVerdict => ({
  kind: 'failed',
  problem: toStorableText(problem.slice(0, problemCharsMax)),
  isFinal,
});

type Validate = ((value: unknown) => unknown) & { errors?: ErrorObject[] | null };

/** What is wrong with a text, as a sentence without its full stop; null if nothing is. */
function findProblem(text: string, validate: Validate): string | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return text === '' ? 'the content is empty' : 'the content is not valid JSON';
  }
  if (validate(value) === true) return null;
  const [first] = validate.errors ?? [];
  validate.errors = null;
  return first === undefined ? 'the content does not match' : describe(first);
}

function describe({ instancePath: path, message = 'is not valid', params }: ErrorObject): string {
  const where = path === '' ? 'the content' : `'${path.slice(0, pathCharsMax)}'`;
  const { allowedValues, allowedValue, additionalProperty } = params as Readonly<Record<string, unknown>>;
  const detail = allowedValues ?? allowedValue ?? additionalProperty;
  return `${where} ${message}${detail === undefined ? '' : `: ${JSON.stringify(detail).slice(0, pathCharsMax)}`}`;
}
