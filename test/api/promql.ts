import { parser } from '@prometheus-io/lezer-promql';

// What an expression of Prometheus asks for, by the grammar that Prometheus itself publishes.

type Matcher = { label: string; operator: string; value: string };
export type Selector = { metric: string; matchers: Matcher[] };

export type Expression = {
  selectors: Selector[];
  /** For each aggregation that keeps labels: which, and of what. */
  groupings: { labels: string[]; of: Selector[] }[];
  /** The labels that the result has, as far as the expression itself says: null if it aggregates nothing. */
  resultLabels: string[] | null;
  /** What is compared with a threshold; the whole expression if nothing is. */
  measured: string;
};

type Node = ReturnType<typeof parser.parse>['topNode'];

const comparisons = new Set(['Gtr', 'Gte', 'Lss', 'Lte', 'Neq', 'Eql']);

/** Throws an error that names the place, if the text is no expression. */
export function readPromql(text: string): Expression {
  const tree = parser.parse(text);
  const asText = (node: Node | null): string => (node === null ? '' : text.slice(node.from, node.to));
  /** The nodes of this name in a node and below it, outermost first. */
  const within = (root: Node, name: string): Node[] => {
    const found: Node[] = [];
    root.cursor().iterate(({ type, node }) => {
      if (type.isError) throw new Error(`not PromQL at character ${node.from}: ${text}`);
      if (type.name === name) found.push(node);
    });
    return found;
  };
  const selectorsIn = (root: Node): Selector[] =>
    within(root, 'VectorSelector').map((selector) => ({
      metric: asText(selector.getChild('Identifier')),
      matchers: within(selector, 'UnquotedLabelMatcher').map((matcher) => ({
        label: asText(matcher.getChild('LabelName')),
        operator: asText(matcher.getChild('MatchOp')),
        value: asText(matcher.getChild('StringLiteral')).slice(1, -1),
      })),
    }));
  const labelsOf = (aggregation: Node): string[] => {
    const kept = aggregation.getChild('AggregateModifier');
    return kept === null ? [] : within(kept, 'LabelName').map(asText);
  };
  const aggregations = within(tree.topNode, 'AggregateExpr');
  const top = tree.topNode.firstChild;
  const [left, operator] = [top?.firstChild ?? null, top?.firstChild?.nextSibling?.name ?? ''];
  return {
    selectors: selectorsIn(tree.topNode),
    groupings: aggregations.map((aggregation) => ({ labels: labelsOf(aggregation), of: selectorsIn(aggregation) })),
    resultLabels: aggregations[0] === undefined ? null : labelsOf(aggregations[0]),
    measured: comparisons.has(operator) ? asText(left) : text,
  };
}
