import type { GatewayError } from '#libs/kernel/errors.ts';
import type { JsonAnswer, Outcome } from '#libs/calls/call.ts';
import type { Faults } from './provider-faults.ts';
import { addUsage, asRecord } from './usage.ts';

/** Takes each outcome of a call in turn, and gives back what it is worth as an answer to a wish for a JSON object. */
export type HoldToJsonObject = (outcome: Outcome) => Outcome;

/**
 * No model writes so much: 128,000 tokens are about half a MiB. It bounds what looking at an answer takes, which is dropped
 * before anything else is done: 2 ms for what models write, some 40 ms and 20 MB for the worst that fits.
 */
const bodyBytesMax = 1_048_576;

/**
 * Checks the whole answers of one call that was asked for a JSON object in words alone. Such an answer goes on with the
 * object as its content, without a Markdown fence or white space around it; any other that is finished becomes the failure
 * `json_object_not_met`, which tells what it has cost. What was cut off, refused or filtered, and calls of tools pass, as
 * they do where a provider has a mode for it. The usage of the last outcome is that of all answers up to it.
 */
export function createHoldToJsonObject(faults: () => Faults): HoldToJsonObject {
  let lost: JsonAnswer | null = null;

  /** The answer was no object; it was paid for. */
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

/** The model said all that it had to say, and said it in words. */
function isWholeText({ finish_reason: reason, message }: Members): boolean {
  const { refusal, tool_calls: calls, function_call: called } = asRecord(message);
  return reason === 'stop' && !refusal && !called && !(Array.isArray(calls) && calls.length > 0);
}

/** The text of the JSON object that is all of `text`, but for white space and one Markdown fence around it; null: none is. */
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
  // The closing fence is a stop sequence of some callers, and is missing then.
  return (inner.endsWith('```') ? inner.slice(0, -3) : inner).trim();
}
