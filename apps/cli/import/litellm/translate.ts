import { CliError } from '../../server/cli-error.ts';
import { readDeployments } from './deployments.ts';
import { generalAdvice, sectionAdvice } from './known-fields.ts';
import { Limits } from './limits.ts';
import { toModelRecords } from './model-records.ts';
import type { RecordDocument } from './record-document.ts';
import { advise, readRouting } from './routing.ts';
import { FieldReport, SourceNode, type FieldLine } from './source-node.ts';
import { parseReference, Variables } from './variables.ts';
import { VirtualKeys } from './virtual-keys.ts';

export type Translation = {
  /** As files of `sluice apply` have them, in the order in which they are applied. They contain no secrets. */
  records: RecordDocument[];
  /** One line for each field of the file, in its order. */
  lines: FieldLine[];
  /** Variables that are not set, so that fields or entries were left out. */
  missing: string[];
  /** The literal secrets of the file by the variables that records refer to. Never print them. */
  secrets: ReadonlyMap<string, string>;
};

const recordsMax = 2_000;

/**
 * Translates the `config.yaml` of LiteLLM's proxy (docs.litellm.ai/docs/proxy/config_settings) into records. `environment`
 * returns the value of a variable, for values other than secrets. Throws CliError for a file that is too large.
 */
export function translateLiteLlm(
  document: Readonly<Record<string, unknown>>,
  environment: (name: string) => string | undefined,
): Translation {
  const report = new FieldReport(document);
  const variables = new Variables(readDefinedVariables(document['environment_variables'], environment), environment);
  const root = new SourceNode({ report, variables }, document);
  const [limits, virtualKeys] = [new Limits(), new VirtualKeys(variables)];
  const credentials = readCredentials(root.member('credential_list'));
  const groups = readDeployments(root.member('model_list'), { virtualKeys, variables, limits, credentials });
  const routing = readRouting(root.member('router_settings'), root.member('litellm_settings'), limits);
  const models = toModelRecords(groups, routing);
  advise(root.member('general_settings'), generalAdvice);
  advise(root, sectionAdvice);
  for (const node of root.members()) if (node.name.startsWith('x-')) node.same('What refers to it is imported.');
  for (const [name, node] of credentials) {
    node.unsupported(`No entry of model_list that can be called uses it: litellm_credential_name ${name}.`);
  }
  reportVariables(root.member('environment_variables'), variables);
  const records = [...virtualKeys.documents(), ...models, ...limits.documents()];
  if (records.length > recordsMax) {
    throw new CliError(`The file becomes ${records.length} records; the maximum is ${recordsMax}. Split it.`);
  }
  return { records, lines: report.lines(), missing: variables.missing(), secrets: variables.secrets() };
}

/** `environment_variables`, which LiteLLM sets when it starts. */
function readDefinedVariables(
  section: unknown,
  environment: (name: string) => string | undefined,
): ReadonlyMap<string, string> {
  const members = typeof section === 'object' && section !== null ? Object.entries(section) : [];
  return new Map(
    members.flatMap(([name, value]): [string, string][] => {
      const reference = parseReference(value);
      const text = reference === null ? value : environment(reference);
      return typeof text === 'string' || typeof text === 'number' || typeof text === 'boolean'
        ? [[name, String(text)]]
        : [];
    }),
  );
}

/** The stored credentials by name. */
function readCredentials(list: SourceNode): Map<string, SourceNode> {
  const credentials = new Map<string, SourceNode>();
  for (const node of list.items()) {
    const nameNode = node.member('credential_name');
    const name = nameNode.isGiven ? nameNode.text() : null;
    node.member('credential_info').same('Display only.');
    if (name === null) continue;
    nameNode.same();
    credentials.set(name, node.member('credential_values'));
  }
  return credentials;
}

function reportVariables(section: SourceNode, variables: Variables): void {
  for (const node of section.members()) {
    if (variables.isUsed(node.name)) {
      node.changed('Used by --apply and for settings. Set the variable yourself for sluice apply if it is a secret.');
    } else node.unsupported('No imported field uses it. Sluice has its own variables (docs/configuration.md).');
  }
}
