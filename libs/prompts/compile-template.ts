import mustache from 'mustache';
import { GatewayError } from '#libs/kernel/errors.ts';

/** A part of a compiled template. A name is its path: `['user', 'name']`; empty for `{{.}}`, the item itself. */
export type TemplateNode =
  | { kind: 'text'; text: string }
  | { kind: 'value'; path: readonly string[]; name: string }
  | { kind: 'section'; path: readonly string[]; isInverted: boolean; nodes: readonly TemplateNode[] }
  | { kind: 'partial'; name: string };

export type Template = {
  nodes: readonly TemplateNode[];
  /** The names of the partials that it includes, each once. */
  partials: readonly string[];
};

/** The maximum cost of compiling and storing one template. No prompt that people write comes near these. */
const tagsMax = 5_000;
const sectionDepthMax = 32;
const nameLengthMax = 200;
// The parser looks for the end of a tag with `\s*}}`, which takes quadratic time on a long run of spaces.
const spacesMax = 500;

const longSpace = new RegExp(`\\s{${spacesMax + 1}}`);

type Token = [type: string, value: string, start: number, end: number, nodes?: Token[]];

// Without its own cache, which is never emptied.
const parser = new mustache.Writer() as mustache.Writer & { templateCache: undefined };
parser.templateCache = undefined;

/**
 * Compiles a Mustache template. It is logic-less: it has names, sections and partials, and never calls functions.
 * `where` is the name of the text in messages, such as `string`. Throws invalid_request with the position and the
 * reason.
 */
export function compileTemplate(text: string, where: string): Template {
  const refuse = (reason: string, position: number): GatewayError => {
    const before = text.slice(0, position).split('\n');
    const place = `line ${before.length}, column ${(before.at(-1)?.length ?? 0) + 1} (position ${position})`;
    const message = `Invalid '${where}': the template is malformed at ${place}: ${reason}.`;
    return new GatewayError('invalid_request', 'invalid_template', message, { param: where });
  };
  const spaces = longSpace.exec(text);
  if (spaces) throw refuse(`there are more than ${spacesMax} spaces or line ends in a row`, spaces.index);
  const partials = new Set<string>();
  let tags = 0;

  const toPath = (name: string, start: number): readonly string[] => {
    if (name === '') throw refuse('a tag has no name', start);
    if (name.length > nameLengthMax) throw refuse(`a name has more than ${nameLengthMax} characters`, start);
    return name === '.' ? [] : name.split('.');
  };

  const toNodes = (tokens: readonly Token[], depth: number): TemplateNode[] =>
    tokens.flatMap(([type, value, start, , nested = []]): TemplateNode[] => {
      if (type === 'text') return [{ kind: 'text', text: value }];
      tags += 1;
      if (tags > tagsMax) throw refuse(`a template can have at most ${tagsMax} tags`, start);
      switch (type) {
        case 'name':
        case '&':
          return [{ kind: 'value', path: toPath(value, start), name: value }];
        case '#':
        case '^': {
          if (depth === sectionDepthMax)
            throw refuse(`sections can be nested at most ${sectionDepthMax} levels deep`, start);
          const path = toPath(value, start);
          return [{ kind: 'section', path, isInverted: type === '^', nodes: toNodes(nested, depth + 1) }];
        }
        case '>':
          toPath(value, start);
          partials.add(value);
          return [{ kind: 'partial', name: value }];
        default:
          // Comments, and tags that change the delimiters.
          return [];
      }
    });

  return { nodes: toNodes(parse(text, refuse), 0), partials: [...partials] };
}

function parse(text: string, refuse: (reason: string, position: number) => GatewayError): Token[] {
  try {
    return parser.parse(text) as Token[];
  } catch (error) {
    // For example `Unclosed section "items" at 17`.
    const [, reason, position] = /^(.*) at (\d+)$/s.exec((error as Error).message) ?? [];
    if (reason === undefined) throw refuse('a delimiter tag must set exactly two delimiters', 0);
    throw refuse(reason.charAt(0).toLowerCase() + reason.slice(1, 300), Number(position));
  }
}
