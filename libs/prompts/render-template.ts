import { GatewayError } from '#libs/kernel/errors.ts';
import type { Template, TemplateNode } from './compile-template.ts';

/** Limits of rendering one prompt, with all of its texts together. */
export type RenderLimits = {
  /** The total length of the texts, in UTF-16 units. */
  outputCharsMax: number;
};

// A step is a visited node: 200,000 take about 20 ms, in which no other call of the process continues.
const stepsMax = 200_000;
/** The nesting of partials. A partial can include itself, so that a tree can be rendered. */
const partialDepthMax = 20;

/** Renders the texts of one prompt with one set of variables and one budget. */
export type Renderer = {
  /** Throws invalid_request (`prompt_too_large`, `partials_too_deep`) when a limit is exceeded. */
  render(template: Template): string;
  /** Names in the template that no variable has, in the order of their appearance. They render as empty. */
  missing(): string[];
  /**
   * The missing names that the template itself uses outside of sections. Those in sections and partials are optional.
   */
  required(): string[];
};

const missingMax = 100;
const absent = Symbol('absent');

/**
 * Creates the renderer. Only own members of the variables are ever read, so `{{constructor}}` and `{{__proto__}}` are
 * names like any other. No function is called and nothing is escaped. Objects and lists are written as JSON where a
 * text is expected. `partials` has every partial that a template includes.
 */
export function createRenderer(
  variables: Readonly<Record<string, unknown>>,
  partials: ReadonlyMap<string, Template>,
  { outputCharsMax }: RenderLimits,
): Renderer {
  /** By name: whether it is required. */
  const missing = new Map<string, boolean>();
  let steps = 0;
  let chars = 0;

  const pieceOf = (text: string): string => {
    chars += text.length;
    if (chars > outputCharsMax) throw tooLarge(`the rendered text has more than ${outputCharsMax} characters`);
    return text;
  };

  const renderNodes = (
    nodes: readonly TemplateNode[],
    scopes: readonly unknown[],
    depth: number,
    isOptional: boolean,
  ): string => {
    let text = '';
    for (const node of nodes) {
      steps += 1;
      if (steps > stepsMax) throw tooLarge(`rendering it takes more than ${stepsMax} steps`);
      switch (node.kind) {
        case 'text':
          text += pieceOf(node.text);
          break;
        case 'value': {
          const value = lookUp(node.path, scopes);
          if (value === absent && (missing.has(node.name) || missing.size < missingMax))
            missing.set(node.name, !isOptional || missing.get(node.name) === true);
          text += pieceOf(asText(value));
          break;
        }
        case 'section':
          text += renderSection(node, scopes, depth);
          break;
        case 'partial': {
          if (depth === partialDepthMax) throw tooDeep(node.name);
          const partial = partials.get(node.name);
          if (partial === undefined) throw new Error(`the partial ${node.name} was not resolved`);
          text += renderNodes(partial.nodes, scopes, depth + 1, true);
        }
      }
    }
    return text;
  };

  const renderSection = (
    { path, isInverted, nodes }: Extract<TemplateNode, { kind: 'section' }>,
    scopes: readonly unknown[],
    depth: number,
  ): string => {
    const value = lookUp(path, scopes);
    const isThere = value !== absent && Boolean(value) && !(Array.isArray(value) && value.length === 0);
    if (isInverted) return isThere ? '' : renderNodes(nodes, scopes, depth, true);
    if (!isThere) return '';
    if (!Array.isArray(value)) return renderNodes(nodes, value === true ? scopes : [...scopes, value], depth, true);
    let text = '';
    for (const item of value) {
      // An empty section over a long list costs a step for each of its items, too.
      steps += 1;
      text += renderNodes(nodes, [...scopes, item], depth, true);
    }
    return text;
  };

  return {
    render: ({ nodes }) => renderNodes(nodes, [variables], 0, false),
    missing: () => [...missing.keys()],
    required: () => [...missing].filter(([, isRequired]) => isRequired).map(([name]) => name),
  };
}

/** The innermost scope that has the first name is used, as in the specification of Mustache. */
function lookUp([first, ...rest]: readonly string[], scopes: readonly unknown[]): unknown {
  if (first === undefined) return scopes.at(-1);
  for (let index = scopes.length - 1; index >= 0; index -= 1) {
    let value = memberOf(scopes[index], first);
    if (value === absent) continue;
    for (const name of rest) value = memberOf(value, name);
    return value;
  }
  return absent;
}

const memberOf = (value: unknown, name: string): unknown =>
  typeof value === 'object' && value !== null && Object.hasOwn(value, name)
    ? (value as Record<string, unknown>)[name]
    : absent;

function asText(value: unknown): string {
  if (typeof value === 'string') return value;
  if (value === absent || value === null || value === undefined) return '';
  return JSON.stringify(value);
}

const tooLarge = (reason: string): GatewayError =>
  new GatewayError('invalid_request', 'prompt_too_large', `The prompt is too large with these variables: ${reason}.`, {
    param: 'variables',
  });

const tooDeep = (name: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'partials_too_deep',
    `The partials of this prompt are nested more than ${partialDepthMax} levels deep at '${name}'. Check whether a partial includes itself.`,
  );
