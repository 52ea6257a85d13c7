import { signatureOf } from '#apps/simulator/wire/anthropic/turns.ts';
import { refuse } from '#test/conformance/formats/bedrock/refuse.ts';
import type { ConverseMessage, ConverseRequest } from './bedrock-schema.ts';

/** The rules that a schema cannot express: turns, blank texts, tool results, thoughts. Throws Refusal (400). */
export function checkTurns({ messages, toolConfig }: ConverseRequest): void {
  if (messages[0]?.role !== 'user') {
    refuse(
      'A conversation must start with a user message. Try again with a conversation that starts with a user message.',
    );
  }
  for (const [index, message] of messages.entries()) {
    const before = index === 0 ? undefined : messages[index - 1];
    if (before?.role === message.role) {
      refuse(
        'A conversation must alternate between user and assistant roles. Make sure the conversation alternates between user and assistant roles and try again.',
      );
    }
    checkBlocks(message, index, toolConfig !== undefined);
    if (message.role === 'user') checkResults(message, before, index);
  }
  const last = messages.at(-1);
  if (last?.role === 'assistant' && idsOf(last).length > 0) expectResults(idsOf(last), messages.length);
}

function checkBlocks({ role, content }: ConverseMessage, index: number, hasTools: boolean): void {
  for (const [at, { text, toolUse, toolResult, reasoningContent }] of content.entries()) {
    if (text !== undefined && text.trim() === '') {
      refuse(
        `The text field in the ContentBlock object at messages.${index}.content.${at} is blank. Add text to the text field, and try again.`,
      );
    }
    if (!hasTools && (toolUse !== undefined || toolResult !== undefined)) {
      refuse('The toolConfig field must be defined when using toolUse and toolResult content blocks.');
    }
    if (role === 'user' ? toolUse !== undefined || reasoningContent !== undefined : toolResult !== undefined) {
      refuse(`The content block at messages.${index}.content.${at} cannot stand in a message of role ${role}.`);
    }
    const thought = reasoningContent?.reasoningText;
    if (thought !== undefined && thought.signature !== signatureOf(thought.text)) {
      refuse(`messages.${index}.content.${at}: Invalid \`signature\` in \`thinking\` block`);
    }
  }
}

function checkResults({ content }: ConverseMessage, before: ConverseMessage | undefined, index: number): void {
  const asked = before === undefined ? [] : idsOf(before);
  const answered = content.flatMap(({ toolResult }) => (toolResult === undefined ? [] : [toolResult.toolUseId]));
  const open = asked.filter((id) => !answered.includes(id));
  if (open.length > 0) expectResults(open, index);
  if (answered.length > asked.length || answered.some((id) => !asked.includes(id))) {
    refuse(
      `The number of toolResult blocks at messages.${index}.content exceeds the number of toolUse blocks of previous turn.`,
    );
  }
}

function idsOf({ content }: ConverseMessage): string[] {
  return content.flatMap(({ toolUse }) => (toolUse === undefined ? [] : [toolUse.toolUseId]));
}

function expectResults(ids: readonly string[], index: number): never {
  return refuse(`Expected toolResult blocks at messages.${index}.content for the following Ids: ${ids.join(', ')}`);
}
