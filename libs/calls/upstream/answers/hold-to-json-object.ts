import type { GatewayError } from '#libs/kernel/errors.ts';
import type { JsonAnswer, Outcome } from '#libs/calls/call.ts';
import type { Faults } from '../provider-faults.ts';
import { addUsage, asRecord } from './usage.ts';

/**
 * Takes each outcome of a call in turn, and returns it as the answer to a request for a JSON object, or as a failure.
 */
export type HoldToJsonObject = (outcome: Outcome) => Outcome;

/**
 * No model writes this much: 128,000 tokens are about half a MiB. The limit bounds the cost of reading an answer: 2 ms
 * for ordinary answers, and about 40 ms and 20 MB in the worst case.
 */
const bodyBytesMax = 1_048_576;

/**
 * Checks the whole answers of one call in which a JSON object was only requested in words. If an answer is a JSON
 * object, its content becomes that object, without a Markdown fence or white space around it. Any other finished answer
 * becomes the failure `json_object_not_met` with its usage. Answers that were cut off, refused or filtered, and tool
 * calls, pass unchanged, as they do with providers that have a mode for it. The usage of the last outcome is the sum of
 * all answers so far.
 */
export function createHoldToJsonObject(faults: () => Faults): HoldToJsonObject {
  let lost: JsonAnswer | null = null;

  /** The answer was not an object, but has to be paid for. */
  const lose = (answer: JsonAnswer, error: GatewayError): Outcome => {
    lost = answer;
    return { kind: 'failed', error, attempts: answer.attempts, lostAnswer: answer };
  };

  return (outcome) => {
    if (outcome.kind === 'failed') return lost === null ? outcome : { ...outcome, lostAnswer: lost };
    if (outcome.kind !== 'json') return outcome;
    const answer = lost === null ? outcome : { ...outcome, usage: addUsage(lost.usage, outcome.usage) };
    if (answer.status >= 400) return answer;
    if (answer.body.length > bodyBytesMax) return lose(answer, faults().tooLarge('a JSON object', bodyBytesMax));
    const body = asRecord(JSON.parse(answer.body.toString()));
    const choices = Array.isArray(body['choices']) ? body['choices'].map(asRecord) : [];
    let isChanged = false;
    for (const [index, choice] of choices.entries()) {
      if (!isWholeText(choice)) continue;
      const message = asRecord(choice['message']);
      const said = typeof message['content'] === 'string' ? message['content'] : '';
      const content = jsonObjectIn(said);
      if (content === null) return lose(answer, faults().jsonObjectNotMet(said));
      if (content === said) continue;
      choices[index] = { ...choice, message: { ...message, content } };
      isChanged = true;
    }
    return isChanged ? { ...answer, body: Buffer.from(JSON.stringify({ ...body, choices })) } : answer;
  };
}

type Members = Readonly<Record<string, unknown>>;

/** The model has finished its answer, and it is text. */
function isWholeText({ finish_reason: reason, message }: Members): boolean {
  const { refusal, tool_calls: calls, function_call: called } = asRecord(message);
  return reason === 'stop' && !refusal && !called && !(Array.isArray(calls) && calls.length > 0);
}

/**
 * Returns the text of the JSON object that makes up all of `text`, except for white space and one Markdown fence around
 * it; null if there is none.
 */
function jsonObjectIn(text: string): string | null {
  const inner = withoutFence(text.trim());
  if (!inner.startsWith('{')) return null;
  try {
    JSON.parse(inner);
    return inner;
  } catch {
    return null;
  }
}

function withoutFence(text: string): string {
  const opening = /^```(?:json)?\s/i.exec(text);
  if (opening === null) return text;
  const inner = text.slice(opening[0].length);
  // Some callers use the closing fence as a stop sequence, so it can be missing.
  return (inner.endsWith('```') ? inner.slice(0, -3) : inner).trim();
}
