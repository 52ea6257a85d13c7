import { callSignature } from '#test/conformance/formats/gemini/generate-content.ts';
import { refuse } from '#test/conformance/formats/gemini/google-error.ts';
import type { Content } from './gemini-schema.ts';

// Google's values for calls that were not made by its models.
const skipped = new Set(['skip_thought_signature_validator', 'context_engineering_is_the_way_to_go']);

/** Roles, the order of function turns, and (`signed`: Gemini 3) the thought signatures of calls. Throws Refusal (400). */
export function checkTurns(contents: readonly Content[], signed: boolean): void {
  for (const [index, { role, parts }] of contents.entries()) {
    if (role !== undefined && !['user', 'model', 'function'].includes(role)) {
      refuse('Please use a valid role: user, model.');
    }
    if (parts.length === 0) {
      refuse(`* GenerateContentRequest.contents[${index}].parts: contents.parts must not be empty.`);
    }
    checkFunctions(contents, index);
  }
  if (signed) checkSignatures(contents);
}

function checkFunctions(contents: readonly Content[], index: number): void {
  const called = callsOf(index === 0 ? undefined : contents[index - 1]).map(({ name }) => name);
  const turn = contents[index];
  const answered = (turn?.parts ?? []).flatMap(({ functionResponse }) => functionResponse?.name ?? []);
  const calls = callsOf(turn);
  if (calls.length > 0) {
    if (turn?.role !== 'model') refuse('Please ensure that function call turn has the role model.');
    if (index === 0 || contents[index - 1]?.role === 'model') {
      refuse(
        'Please ensure that function call turn comes immediately after a user turn or after a function response turn.',
      );
    }
  }
  if (answered.length > 0 && turn?.role === 'model')
    refuse('Please ensure that function response turn has the role user or function.');
  if (called.length === 0 && answered.length === 0) return;
  if (called.length === 0)
    refuse('Please ensure that function response turn comes immediately after a function call turn.');
  if (called.length !== answered.length) {
    refuse(
      'Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.',
    );
  }
  const open = [...called];
  for (const name of answered) {
    const at = open.indexOf(name);
    if (at === -1)
      refuse(
        `Please ensure that function response parts have the names of the function calls: '${name}' was not called.`,
      );
    open.splice(at, 1);
  }
}

/** In the current turn (since the last text of the user) the first call of each step must have its signature. */
function checkSignatures(contents: readonly Content[]): void {
  const saidAt = contents.findLastIndex(
    ({ role, parts }) => role !== 'model' && !parts.some(({ functionResponse }) => functionResponse !== undefined),
  );
  for (const [offset, turn] of contents.slice(saidAt + 1).entries()) {
    const [first] = turn.parts.filter(({ functionCall }) => functionCall !== undefined);
    if (first?.functionCall === undefined) continue;
    const { name, args = {} } = first.functionCall;
    const signature = first.thoughtSignature;
    if (signature === undefined) {
      refuse(
        `Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call \`default_api:${name}\` , position ${saidAt + offset + 2}. Please refer to https://ai.google.dev/gemini-api/docs/thought-signatures for more details.`,
      );
    }
    if (signature !== callSignature(name, args) && !skipped.has(asText(signature)))
      refuse('Thought signature is not valid.');
  }
}

/** The two values that disable the check may be plain or in base64. */
function asText(signature: string): string {
  return skipped.has(signature) ? signature : Buffer.from(signature, 'base64').toString();
}

function callsOf(turn: Content | undefined): { name: string }[] {
  return (turn?.parts ?? []).flatMap(({ functionCall }) => functionCall ?? []);
}
