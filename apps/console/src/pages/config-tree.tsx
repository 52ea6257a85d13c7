import { Badge } from '../parts/basics.tsx';

type Node = Record<string, unknown>;

const isNode = (value: unknown): value is Node => typeof value === 'object' && value !== null && !Array.isArray(value);
const textOf = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value));

const modes: Readonly<Record<string, string>> = {
  fallback: 'tries in order',
  loadbalance: 'selects by weight',
  conditional: 'selects by conditions',
  single: 'goes to',
};

/** A config as a tree. It is a nested list, so that screen readers present it as one. */
export function ConfigTree({ config }: { config: Node }) {
  return (
    <ul className="tree">
      <TreeNode node={config} note={null} />
    </ul>
  );
}

function TreeNode({ node, note }: { node: Node; note: string | null }) {
  const targets = Array.isArray(node['targets']) ? node['targets'].filter(isNode) : [];
  const strategy = isNode(node['strategy']) ? node['strategy'] : {};
  const mode = typeof strategy['mode'] === 'string' ? strategy['mode'] : 'single';
  const weights = targets.map(({ weight }) => (typeof weight === 'number' ? weight : 1));
  const all = weights.reduce((sum, weight) => sum + weight, 0);
  return (
    <li>
      <div className="tree-node">
        {note === null ? null : <Badge tone="info">{note}</Badge>}
        {typeof node['name'] === 'string' ? <strong>{node['name']}</strong> : null}
        {targets.length > 0 ? <span>{modes[mode] ?? mode}</span> : <Place node={node} />}
        <Around node={node} />
      </div>
      {targets.length === 0 ? null : (
        <ul>
          {targets.map((target, index) => (
            <TreeNode
              key={index}
              node={target}
              note={noteOf(mode, strategy, target, { index, share: (weights[index] ?? 0) / (all || 1) })}
            />
          ))}
        </ul>
      )}
    </li>
  );
}

function noteOf(mode: string, strategy: Node, target: Node, at: { index: number; share: number }): string | null {
  if (mode === 'loadbalance') return `${Math.round(at.share * 100)} %`;
  if (mode === 'fallback') return at.index === 0 ? 'first' : `then, ${statusText(strategy['on_status_codes'])}`;
  if (mode !== 'conditional') return null;
  const name = target['name'];
  const conditions = Array.isArray(strategy['conditions']) ? strategy['conditions'].filter(isNode) : [];
  const found = conditions.find((condition) => condition['then'] === name);
  if (found !== undefined) return `if ${textOf(found['query'])}`;
  return strategy['default'] === name ? 'otherwise' : null;
}

const statusText = (codes: unknown): string => (Array.isArray(codes) ? `after ${codes.join(', ')}` : 'unless 2xx');

/** Where the calls of a target are sent. */
function Place({ node }: { node: Node }) {
  const params = isNode(node['override_params']) ? node['override_params'] : {};
  const place = node['virtual_key'] ?? node['virtualKey'] ?? node['provider'];
  return (
    <>
      <code>{place === undefined ? "the request's target" : textOf(place)}</code>
      {params['model'] === undefined ? null : <code>{textOf(params['model'])}</code>}
    </>
  );
}

const around: readonly [string, string][] = [
  ['retry', 'retries'],
  ['cache', 'cache'],
  ['cb_config', 'breaker'],
  ['request_timeout', 'time limit'],
  ['input_guardrails', 'input checks'],
  ['before_request_hooks', 'input checks'],
  ['output_guardrails', 'output checks'],
  ['after_request_hooks', 'output checks'],
  ['prompt_id', 'prompt'],
];

const Around = ({ node }: { node: Node }) => (
  <>
    {around
      .filter(([member]) => node[member] !== undefined && node[member] !== null)
      .map(([member, text]) => (
        <Badge key={member}>{text}</Badge>
      ))}
  </>
);
