import { Option, type Command } from 'commander';
import { CliError, exitCodes } from '../server/cli-error.ts';
import { clientCommand, toCount, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { note, printRows } from '../terminal/output.ts';
import { formatCost } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { toMoment } from './time-range.ts';

type Options = ClientOptions & { by: string; since: string; until: string; session?: string; limit: number };

type Group = Record<string, string | number | null>;

/** The groupings, with their paths. A group is named by the first of `names` that it has. */
const groupings: Record<string, { path: string; names: readonly string[] }> = {
  model: { path: 'model', names: ['ai_model'] },
  key: { path: 'api_key', names: ['api_key_name', 'api_key'] },
  user: { path: 'users', names: ['user'] },
  provider: { path: 'provider', names: ['provider'] },
  'virtual-key': { path: 'virtual_key', names: ['virtual_key'] },
  session: { path: 'session', names: ['session_id'] },
  agent: { path: 'agent', names: ['agent_id'] },
  config: { path: 'config', names: ['config'] },
  prompt: { path: 'prompt', names: ['prompt'] },
  workspace: { path: 'workspace', names: ['workspace_slug', 'workspace_id'] },
};

/** Adds `sluice usage`. */
export function addUsageCommand(program: Command): void {
  clientCommand(program, 'usage', 'calls, tokens and costs by model, key, user, agent session or metadata')
    .addOption(new Option('--by <what>', `${Object.keys(groupings).join(', ')}, or metadata:NAME`).default('model'))
    .addOption(
      new Option('--since <time>', 'start: 24h or 30d ago, or a time such as 2026-11-01')
        .argParser(toMoment)
        .default(toMoment('30d'), '30d'),
    )
    .addOption(
      new Option('--until <time>', 'end, in the same format')
        .argParser(toMoment)
        .default(new Date().toISOString(), 'now'),
    )
    .option('--session <id>', 'only calls of this agent session, for example with --by agent')
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 1_000 }), 50)
    .action(async (options: Options) => {
      const [, key] = /^metadata:(.+)$/.exec(options.by) ?? [];
      const grouping =
        key === undefined
          ? groupings[options.by]
          : { path: `metadata/${encodeURIComponent(key)}`, names: ['metadata_value'] };
      if (grouping === undefined) {
        throw new CliError(`--by must be ${Object.keys(groupings).join(', ')} or metadata:NAME.`, {
          exitCode: exitCodes.usage,
        });
      }
      const client = await connect(options);
      const read = async (filters: { ai_org_model?: string }): Promise<Group[]> => {
        const query = {
          time_of_generation_min: options.since,
          time_of_generation_max: options.until,
          page_size: options.limit,
          order_by: 'cost',
          session_id: options.session,
          ...filters,
        };
        const path = `/v1/analytics/groups/${grouping.path}`;
        return (await client.json<{ data: Group[] }>('GET', path, { query })).data;
      };
      const nameOf = (group: Group) => grouping.names.map((name) => group[name]).find((name) => name != null);
      const dollarsIn = ({ cost = null }: Group): number | null => (cost === null ? null : Number(cost) / 100);
      const data = await read({});
      const simulated = await read({ ai_org_model: 'simulator' });
      const simulatedOf = new Map(simulated.map((group) => [nameOf(group), dollarsIn(group)]));
      const columns: Column<Group>[] = [
        ['calls', (group) => group['requests']],
        ['tokens', (group) => group['total_tokens']],
        ['cost', (group) => formatCost(dollarsIn(group), simulatedOf.get(nameOf(group))), { right: true }],
        [options.by, nameOf],
      ];
      printRows(data, columns, options);
      note('Analytics are a few seconds behind.');
    });
}
