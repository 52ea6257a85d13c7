import { asRecord } from '#libs/calls/upstream/answers/usage.ts';
import type { CallOperation } from '#libs/calls/call.ts';

type Body = Readonly<Record<string, unknown>>;

/**
 * The texts that the checks of one phase read. A check passes if it passes on each text. Words and patterns are
 * searched for in `said`; counts, JSON and URLs are checked on `measured`. An input is measured by its last message,
 * like in Portkey. Words and patterns, however, are searched for in every string that can reach the model, as one text
 * (request-texts.ts), because a forbidden text has the same effect in an earlier message, in the system message, or in
 * a tool. An output has one text for each choice, and `said` includes the arguments of its tool calls.
 */
export type CallTexts = {
  said: readonly string[];
  measured: readonly string[];
  /** Some of the input is not text, so no check can see its content. */
  unreadable: Unreadable | null;
};

/** `what` never repeats the request. `isMedia`: guardrails with `allow_media` let it pass. */
export type Unreadable = { what: string; isMedia: boolean };

export const noTexts: CallTexts = { said: [], measured: [], unreadable: null };

/** Returns the texts of a whole answer; none for an answer without choices (embeddings). */
export function outputTexts(operation: CallOperation, body: Body): CallTexts {
  const outputs = (outputReaders[operation] ?? choicesOf)(body);
  return {
    said: outputs.map((messages) => messages.flatMap(saidIn).join('\n')),
    measured: outputs.map((messages) => messages.map(textOfMessage).filter(Boolean).join('\n')),
    unreadable: null,
  };
}

/** The outputs of an answer, each with its messages. */
type OutputReader = (body: Body) => Body[][];

const choicesOf: OutputReader = (body) =>
  listOf(body['choices'])
    .map(asRecord)
    .map(({ message, text }) => [typeof text === 'string' ? { content: text } : asRecord(message)]);

const outputReaders: Readonly<Partial<Record<CallOperation, OutputReader>>> = {
  responses: (body) => [listOf(body['output']).map(asRecord)],
  messages: (body) => [
    [...listOf(body['content']).map(asRecord).map(toSaid), { refusal: asRecord(body['stop_details'])['explanation'] }],
  ],
  generate_content: (body) =>
    listOf(body['candidates'])
      .map(asRecord)
      .map((candidate) => [candidateToSaid(candidate)]),
};

/** A candidate of Google's generateContent as a message. Its text can be in several parts. */
function candidateToSaid({ content, finishMessage }: Body): Body {
  const parts = listOf(asRecord(content)['parts']).map(asRecord);
  const join = (isThought: boolean): string =>
    parts
      .map(({ text, thought }) => ((thought === true) === isThought && typeof text === 'string' ? text : ''))
      .join('');
  const calls = parts.map(({ functionCall }) => asRecord(functionCall)).filter(({ name }) => name !== undefined);
  const code = parts.map(({ executableCode }) => asRecord(executableCode)['code']).filter((text) => text !== undefined);
  return {
    content: join(false),
    reasoning: join(true),
    refusal: finishMessage,
    output: code.map((text) => ({ text })),
    tool_calls: calls.map(({ name, args }) => ({ name, arguments: JSON.stringify(args ?? {}) })),
  };
}

/** A block of Anthropic's Messages API, with its text and the arguments of its call where those of a message are. */
const toSaid = ({ text, thinking, name, input }: Body): Body => ({
  content: text,
  reasoning: thinking,
  name,
  input: input === undefined ? undefined : JSON.stringify(input),
});

/**
 * The texts of a message, or of an item of a response: its content, its calls with their arguments, and their results.
 */
function saidIn(message: Body): string[] {
  const { tool_calls: toolCalls, function_call: functionCall, refusal, output, summary } = message;
  // A model's reasoning is read as well, by the member names of DeepSeek and OpenRouter, and so is the transcript of
  // audio.
  const { reasoning_content: thought, reasoning, transcript = asRecord(message['audio'])['transcript'] } = message;
  const calls = [...listOf(toolCalls), functionCall, message].map(asRecord);
  const called = calls.flatMap((call) => {
    const { name, arguments: given, input } = { ...call, ...asRecord(call['function']), ...asRecord(call['custom']) };
    return [name, given, input];
  });
  const said = [textOfMessage(message), refusal, textOfContent(output), textOfContent(summary)];
  const texts = [...said, thought, reasoning, transcript, ...called];
  return texts.filter((text) => typeof text === 'string').filter((text) => text !== '');
}

const textOfMessage = ({ content }: Body): string => textOfContent(content);

/** The texts of parts, joined by line breaks. */
function textOfContent(content: unknown): string {
  if (typeof content === 'string') return content;
  return listOf(content)
    .map(asRecord)
    .map(({ text, refusal }) => text ?? refusal)
    .filter((text) => typeof text === 'string')
    .join('\n');
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);
