import { asRecord } from '#libs/calls/upstream/usage.ts';
import type { CallOperation } from '#libs/calls/call.ts';

type Body = Readonly<Record<string, unknown>>;

/**
 * What the checks of one phase read. A check passes if it passes on each text. Words and patterns are searched for in
 * `said`; counts, JSON and URLs are checked on `measured`. An input is measured by its last message, like in Portkey.
 * But words and patterns are searched for in everything that the model reads, as one text, because a forbidden text has
 * the same effect in an earlier message, in the system message, or in a tool: its description, its property names, or
 * their possible values. An output has one text for each choice, and `said` includes the arguments of its tool calls.
 */
export type CallTexts = {
  said: readonly string[];
  measured: readonly string[];
  /** Some of the input is not text (token ids), so nothing can be said about it. */
  hasUnreadable: boolean;
};

export const noTexts: CallTexts = { said: [], measured: [], hasUnreadable: false };

/** Returns the texts of a request's body. The depth of the body must be bounded. */
export function inputTexts(operation: CallOperation, body: Body): CallTexts {
  if (operation === 'chat') {
    const { messages, tools, functions, response_format: format, prediction } = body;
    const predicted = textOfContent(asRecord(prediction)['content']);
    return conversationTexts(listOf(messages).map(asRecord), [predicted], [tools, functions, format]);
  }
  if (operation === 'responses') {
    const { input, instructions, tools, prompt, text } = body;
    const items = itemsOf(input);
    const variables = Object.values(asRecord(asRecord(prompt)['variables']));
    const before = [...itemsOf(instructions).flatMap(saidIn), ...variables.map(textOfVariable)];
    return conversationTexts(items, [...before, ...items.flatMap(saidByTools)], [tools, asRecord(text)['format']]);
  }
  const input = operation === 'completions' || operation === 'images' ? body['prompt'] : body['input'];
  if (input === undefined || input === null) return noTexts;
  const parts = Array.isArray(input) ? (input as unknown[]) : [input];
  const texts = parts.filter((part) => typeof part === 'string');
  const { suffix } = body;
  const said = operation === 'completions' && typeof suffix === 'string' ? [...texts, suffix] : texts;
  return { said, measured: texts, hasUnreadable: texts.length < parts.length };
}

/** Returns the texts of a whole answer; none for an answer without choices (embeddings). */
export function outputTexts(operation: CallOperation, body: Body): CallTexts {
  const outputs =
    operation === 'responses'
      ? [listOf(body['output']).map(asRecord)]
      : listOf(body['choices'])
          .map(asRecord)
          .map(({ message, text }) => [typeof text === 'string' ? { content: text } : asRecord(message)]);
  return {
    said: outputs.map((messages) => messages.flatMap(saidIn).join('\n')),
    measured: outputs.map((messages) => messages.map(textOfMessage).filter(Boolean).join('\n')),
    hasUnreadable: false,
  };
}

/** `beside`: values of which every text counts, such as the definitions of tools. */
function conversationTexts(
  messages: readonly Body[],
  before: readonly string[],
  beside: readonly unknown[],
): CallTexts {
  const said = [...before, ...messages.flatMap(saidIn), ...beside.flatMap(textsIn)].filter((text) => text !== '');
  const last = messages.at(-1);
  return {
    said: said.length === 0 ? [] : [said.join('\n')],
    measured: last === undefined ? [] : [textOfMessage(last)],
    hasUnreadable: false,
  };
}

/**
 * The texts of a message, or of an item of a response: what it says, its calls with their arguments, and their results.
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

/** The value of a variable of a stored prompt is either a text or a part of a message. */
const textOfVariable = (value: unknown): string => textOfContent(typeof value === 'string' ? value : [value]);

// The results of the provider's own tools, as items of an input: code, the output of a shell, what was found in files.
const toolMembers = ['action', 'code', 'outputs', 'output', 'results', 'queries', 'operation', 'error'];

const saidByTools = (item: Body): string[] =>
  toolMembers.flatMap((name) => textsIn(item[name])).filter((text) => !/^data:[\w/+.-]+;base64,[\w+/=-]*$/.test(text));

/** An input that `/v1/responses` accepts as a text or as a list of items. */
const itemsOf = (value: unknown): Body[] =>
  typeof value === 'string' ? [{ content: value }] : listOf(value).map(asRecord);

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

// Names and types of OpenAI's tools and of JSON Schema, which every caller uses. They do not count as the caller's
// words, wherever they stand.
const wordsOf = (text: string): ReadonlySet<string> => new Set(text.split(/\s+/));
const specifiedNames = wordsOf(
  `type function custom name description parameters strict format json_schema schema title properties required items
  prefixItems enum const default examples nullable anyOf oneOf allOf not if then else additionalProperties
  patternProperties propertyNames minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern
  minItems maxItems uniqueItems contains minProperties maxProperties additionalItems $ref $defs definitions $schema $id
  $anchor $comment deprecated readOnly writeOnly text image_url file_id syntax definition grammar`,
);
const specifiedTypes = wordsOf(
  `object array string number integer boolean null function custom grammar text json_object json_schema input_text
  input_image input_file web_search web_search_preview file_search code_interpreter image_generation mcp local_shell
  computer_use_preview`,
);

/** Every text inside a value, at any depth, and the names of its members, but not the keywords of JSON Schema. */
function textsIn(value: unknown): string[] {
  if (typeof value === 'string') return [value];
  if (Array.isArray(value)) return value.flatMap(textsIn);
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([name, member]) => [
    ...(specifiedNames.has(name) ? [] : [name]),
    ...(name === 'type' ? textsIn(member).filter((text) => !specifiedTypes.has(text)) : textsIn(member)),
  ]);
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);
