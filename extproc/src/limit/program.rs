//! A cost that the operator writes as an expression of the Common Expression Language over the usage.
//!
//! Compiling refuses whatever may fail for another reason than the numbers of an answer: names and functions that do not exist,
//! types that do not fit in any branch, and what takes long. Macros (`map`, `all`) do not exist here, so an expression takes
//! no longer than it is long. What still fails, with the numbers of one answer, costs all of its tokens and is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use attache_proto::Usage;
use cel::common::ast::{Expr, IdedExpr};
use cel::common::types::{CelString, CelUInt};
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, ParseErrors, Program, Value};

use super::rules::MAX_COUNT;
use super::{Cost, CostContext};

/// A compiled expression.
#[derive(Clone)]
pub struct CostProgram {
    source: Arc<str>,
    program: Arc<Program>,
    /// In thousandths.
    each: u64,
    /// The limit whose cost it is; empty for what is only published.
    limit: Arc<str>,
}

/// How often the expression of each limit failed with the numbers of an answer. Of the whole process, as a reload makes new
/// programs of the same limits; as many as limits ever had an expression that failed.
static FALLBACKS: Mutex<BTreeMap<Arc<str>, u64>> = Mutex::new(BTreeMap::new());

/// Operators and functions, but no macros.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::default().with_optional_support(false).with_stdlib()));

impl CostProgram {
    /// The variables that an expression may use.
    pub const VARIABLES: [&str; 9] = [
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "cached_input_tokens",
        "cache_creation_input_tokens",
        "reasoning_tokens",
        "model",
        "backend",
        "route_name",
    ];
    /// Longer than any price list that is written by hand.
    pub const MAX_BYTES: usize = 4 * 1024;

    /// Compiles an expression, and tries all of its parts on answers without tokens and with some.
    ///
    /// # Errors
    /// [`InvalidProgram`] says what is wrong with it.
    pub fn compile(source: &str) -> Result<Self, InvalidProgram> {
        /// The parser recurses, and so does dropping what it made of a long chain of operators: 2,000 of them take about
        /// 6 MiB without optimisation.
        const STACK_BYTES: usize = 64 * 1024 * 1024;
        if source.len() > Self::MAX_BYTES {
            return Err(InvalidProgram::TooLong { bytes: source.len() });
        }
        let text = source.to_owned();
        let compiling =
            std::thread::Builder::new().name("cel".to_owned()).stack_size(STACK_BYTES).spawn(move || compile(&text));
        // A panic of the parser ends that thread alone.
        let compiled = compiling.map(std::thread::JoinHandle::join);
        let program = compiled.ok().and_then(Result::ok).unwrap_or(Err(InvalidProgram::Unreadable))?;
        Ok(Self { source: Arc::from(source), program: Arc::new(program), each: 0, limit: Arc::from("") })
    }

    /// The tokens of one kind, as an expression.
    ///
    /// # Errors
    /// None that anybody saw.
    pub fn of_tokens(cost: Cost) -> Result<Self, InvalidProgram> {
        Self::compile(match cost {
            Cost::Input => "input_tokens",
            Cost::Output => "output_tokens",
            Cost::Total => "total_tokens",
            Cost::CachedInput => "cached_input_tokens",
            Cost::CacheCreationInput => "cache_creation_input_tokens",
            Cost::Reasoning => "reasoning_tokens",
        })
    }

    /// The same cost, and for each request so much more.
    #[must_use]
    pub fn with_each_request(self, more: u64) -> Self {
        Self { each: self.each.saturating_add(more.saturating_mul(1_000)), ..self }
    }

    /// The same cost, whose failures are counted as those of `limit`.
    #[must_use]
    pub fn of_limit(self, limit: &Arc<str>) -> Self {
        Self { limit: Arc::clone(limit), ..self }
    }

    /// The cost of `usage`, in thousandths. Where the expression fails or yields what is no cost, it is all of the tokens, and
    /// that is counted.
    pub fn cost(&self, usage: &Usage, context: &CostContext) -> u64 {
        self.evaluated(usage, context).unwrap_or_else(|| {
            *fallbacks().entry(Arc::clone(&self.limit)).or_default() += 1;
            self.fallback(usage)
        })
    }

    /// The same of a usage that is only expected, which is not counted.
    pub fn expected_cost(&self, usage: &Usage, context: &CostContext) -> u64 {
        self.evaluated(usage, context).unwrap_or_else(|| self.fallback(usage))
    }

    /// How often the expressions of this process failed with the numbers of an answer, by limit.
    pub fn fallbacks() -> Vec<(Arc<str>, u64)> {
        fallbacks().iter().map(|(limit, count)| (Arc::clone(limit), *count)).collect()
    }

    fn evaluated(&self, usage: &Usage, context: &CostContext) -> Option<u64> {
        let value = evaluate(self.program.expression(), usage, context).ok()?;
        Some(self.with_each(thousandths(&value)?))
    }

    fn fallback(&self, usage: &Usage) -> u64 {
        self.with_each(usage.total.saturating_mul(1_000))
    }

    fn with_each(&self, cost: u64) -> u64 {
        cost.saturating_add(self.each).min(MAX_COUNT)
    }
}

fn fallbacks() -> MutexGuard<'static, BTreeMap<Arc<str>, u64>> {
    // Nothing panics between its operations.
    FALLBACKS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PartialEq for CostProgram {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && self.each == other.each
    }
}

impl Eq for CostProgram {}

impl fmt::Debug for CostProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CostProgram").field("source", &self.source).field("each", &self.each).finish_non_exhaustive()
    }
}

/// The expression, and what each request costs besides.
impl fmt::Display for CostProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if self.each > 0 { write!(f, ", and {} a request", self.each / 1_000) } else { Ok(()) }
    }
}

/// What is wrong with an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProgram {
    /// It has more than [`CostProgram::MAX_BYTES`].
    #[error("the expression has {bytes} bytes, more than {}", CostProgram::MAX_BYTES)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is nested too deeply, or its chains of operators are too long.
    #[error("the expression is nested or chained more than {MAX_DEPTH} deep")]
    TooDeep,
    /// It is no expression.
    #[error("line {line}, column {column} of the expression: {reason}")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What the parser says.
        reason: String,
    },
    /// The parser gave up on it.
    #[error("the expression cannot be read")]
    Unreadable,
    /// It uses what an answer does not have.
    #[error("there is no variable `{0}`")]
    UnknownVariable(String),
    /// It calls what does not exist.
    #[error("there is no function `{0}` here")]
    UnknownFunction(String),
    /// It has fields, maps or messages, which no answer has.
    #[error("fields, maps and messages are no part of a cost")]
    Structure,
    /// Numbers of two types, or other values that do not go together.
    #[error("the types do not fit: {0}")]
    Types(String),
    /// It fails for an answer that may well come.
    #[error("it fails for an answer of {tokens} tokens: {reason}")]
    Fails {
        /// How many.
        tokens: u64,
        /// Why.
        reason: String,
    },
    /// It yields no number from 0 on.
    #[error("it yields {found} for an answer of {tokens} tokens, not a number from 0 on")]
    NoCost {
        /// How many.
        tokens: u64,
        /// What it yields.
        found: String,
    },
}

/// Evaluation recurses. 128 levels take about 200 KiB of stack without optimisation; an async runtime's threads have 2 MiB.
const MAX_DEPTH: usize = 128;

fn compile(source: &str) -> Result<Program, InvalidProgram> {
    let program = ENV.compile(source).map_err(|errors| syntax(&errors))?;
    let expression = program.expression();
    let mut parts = Vec::new();
    collect(expression, 1, &mut parts)?;
    for usage in samples() {
        let context = sample_context();
        // Also the parts that these samples do not come to.
        for part in &parts {
            match evaluate(part, &usage, &context) {
                // These depend on the numbers, and a condition may keep them away.
                Err(
                    ExecutionError::DivisionByZero(_)
                    | ExecutionError::RemainderByZero(_)
                    | ExecutionError::Overflow(..)
                    | ExecutionError::FunctionError { .. },
                )
                | Ok(_) => {}
                Err(error) => return Err(InvalidProgram::Types(told(&error))),
            }
        }
        let tokens = usage.total;
        let value = evaluate(expression, &usage, &context)
            .map_err(|error| InvalidProgram::Fails { tokens, reason: told(&error) })?;
        if thousandths(&value).is_none() {
            return Err(InvalidProgram::NoCost { tokens, found: shown(&value) });
        }
    }
    Ok(program)
}

fn syntax(errors: &ParseErrors) -> InvalidProgram {
    let Some(first) = errors.errors.first() else { return InvalidProgram::Unreadable };
    let reason = first.msg.strip_prefix("Syntax error: ").unwrap_or(&first.msg);
    if reason.contains("Recursion limit") {
        return InvalidProgram::TooDeep;
    }
    // The list of all tokens that might have stood there helps nobody.
    let reason = reason.split(" expecting ").next().unwrap_or(reason).to_owned();
    let [line, column] = [first.pos.0, first.pos.1].map(|place| usize::try_from(place).unwrap_or_default().max(1));
    InvalidProgram::Syntax { line, column, reason }
}

/// All calls of an expression, after a look at whether they exist.
fn collect<'e>(expression: &'e IdedExpr, depth: usize, calls: &mut Vec<&'e IdedExpr>) -> Result<(), InvalidProgram> {
    if depth > MAX_DEPTH {
        return Err(InvalidProgram::TooDeep);
    }
    match &expression.expr {
        Expr::Ident(name) if CostProgram::VARIABLES.contains(&name.trim_start_matches('.')) => Ok(()),
        Expr::Ident(name) => Err(InvalidProgram::UnknownVariable(name.clone())),
        Expr::Literal(_) => Ok(()),
        Expr::List(list) => list.elements.iter().try_for_each(|element| collect(element, depth + 1, calls)),
        Expr::Call(call) => {
            if !FUNCTIONS.contains(&&*call.func_name) {
                return Err(InvalidProgram::UnknownFunction(call.func_name.clone()));
            }
            calls.push(expression);
            call.target.as_deref().into_iter().chain(&call.args).try_for_each(|part| collect(part, depth + 1, calls))
        }
        Expr::Unspecified | Expr::Comprehension(_) | Expr::Map(_) | Expr::Select(_) | Expr::Struct(_) => {
            Err(InvalidProgram::Structure)
        }
    }
}

/// What an expression may call, by the names that the parser gives to operators. None makes more of its arguments than they
/// are long together.
const FUNCTIONS: [&str; 28] = [
    "_?_:_",
    "_&&_",
    "_||_",
    "!_",
    "_+_",
    "_-_",
    "_*_",
    "_/_",
    "_%_",
    "-_",
    "_==_",
    "_!=_",
    "_<_",
    "_<=_",
    "_>_",
    "_>=_",
    "@in",
    "_[_]",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "dyn",
    "size",
    "contains",
    "startsWith",
    "endsWith",
];

/// An answer without tokens, and one with tokens of all kinds.
fn samples() -> [Usage; 2] {
    let some =
        Usage { input: 1_000, output: 200, total: 1_200, cached_input: 600, cache_creation_input: 100, reasoning: 50 };
    [Usage::default(), some]
}

fn sample_context() -> CostContext {
    let [model, backend, route] = ["model", "default/backend", "default/route"].map(Arc::<str>::from);
    CostContext { served_model: Arc::clone(&model), model, backend, route }
}

fn evaluate(expression: &IdedExpr, usage: &Usage, context: &CostContext) -> Result<Value, ExecutionError> {
    let variables = Variables { usage, context };
    let mut scope = Context::with_env(Arc::clone(&ENV));
    scope.set_variable_resolver(&variables);
    Value::resolve(expression, &scope)
}

/// A cost in thousandths; `None` for what is none.
fn thousandths(value: &Value) -> Option<u64> {
    let thousandths = match *value {
        Value::UInt(cost) => cost.checked_mul(1_000)?,
        Value::Int(cost) => u64::try_from(cost).ok()?.checked_mul(1_000)?,
        // The nearest, so that a price of 0.1 that no double has is not a thousandth less; the comparison leaves out NaN.
        Value::Float(cost) if cost >= 0.0 && cost <= MAX_COUNT as f64 => (cost * 1_000.0).round() as u64,
        _ => return None,
    };
    (thousandths <= MAX_COUNT).then_some(thousandths)
}

/// An evaluation error, for people.
fn told(error: &ExecutionError) -> String {
    match error {
        ExecutionError::UnsupportedBinaryOperator(operator, left, right) => {
            format!("cannot {operator} {} and {}", type_of(left), type_of(right))
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "it divides by zero".to_owned(),
        ExecutionError::Overflow(operator, ..) => {
            format!("`{operator}` leaves the range of its type (a uint is never below 0)")
        }
        other => other.to_string(),
    }
}

fn type_of(value: &Value) -> String {
    match value.type_of().to_string().as_str() {
        "float" => "double".to_owned(),
        other => other.to_owned(),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        other => format!("a {}", type_of(other)),
    }
}

/// What an expression sees of an answer, under the names of Envoy AI Gateway.
struct Variables<'a> {
    usage: &'a Usage,
    context: &'a CostContext,
}

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let Self { usage, context } = self;
        let tokens = match variable {
            "input_tokens" => usage.input,
            "output_tokens" => usage.output,
            "total_tokens" => usage.total,
            "cached_input_tokens" => usage.cached_input,
            "cache_creation_input_tokens" => usage.cache_creation_input,
            "reasoning_tokens" => usage.reasoning,
            "model" => return Some(CowVal::owned(CelString::from(&*context.model))),
            "backend" => return Some(CowVal::owned(CelString::from(backend_name(&context.backend)))),
            "route_name" => return Some(CowVal::owned(CelString::from(&*context.route))),
            _ => return None,
        };
        Some(CowVal::owned(CelUInt::from(tokens)))
    }
}

/// `name.namespace`, as Envoy AI Gateway has it.
fn backend_name(id: &str) -> String {
    match id.split_once('/') {
        Some((namespace, name)) => format!("{name}.{namespace}"),
        None => id.to_owned(),
    }
}

/// The names that a message can offer for one that does not exist, besides the variables.
impl InvalidProgram {
    /// The functions that an expression may call by name.
    pub fn functions() -> BTreeSet<&'static str> {
        FUNCTIONS.into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_alphabetic())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::asking;
    use super::*;

    const USAGE: Usage =
        Usage { input: 100, output: 10, total: 110, cached_input: 60, cache_creation_input: 20, reasoning: 5 };

    fn cost(source: &str) -> u64 {
        CostProgram::compile(source).unwrap().cost(&USAGE, &asking("llama"))
    }

    fn error(source: &str) -> String {
        CostProgram::compile(source).unwrap_err().to_string()
    }

    #[test]
    fn expressions_of_envoy_ai_gateway_mean_the_same_here() {
        assert_eq!(cost("input_tokens + output_tokens * uint(3)"), 130_000);
        assert_eq!(cost("input_tokens / 2u"), 50_000);
        assert_eq!(cost("input_tokens + cached_input_tokens / 10u + output_tokens * 6u"), 166_000);
        assert_eq!(cost("uint(double(cached_input_tokens) * 0.1)"), 6_000);
        assert_eq!(cost("model == 'llama' ? input_tokens + output_tokens : total_tokens * 2u"), 110_000);
        assert_eq!(cost("backend == 'backend.ns' ? (input_tokens - cached_input_tokens) : 0u"), 40_000);
        assert_eq!(cost("route_name == 'ns/route' && reasoning_tokens > 0u ? 7 : 8"), 7_000);
        assert_eq!(cost("model in ['llama', 'qwen'] ? cache_creation_input_tokens : 1u"), 20_000);
    }

    #[test]
    fn a_fraction_is_counted_in_thousandths() {
        assert_eq!(cost("double(output_tokens) * 0.1"), 1_000);
        assert_eq!(cost("double(input_tokens) * 0.0125 + 0.0004"), 1_250);
    }

    #[test]
    fn tokens_of_one_kind_and_a_fee_for_each_request_add_up() {
        let program = CostProgram::of_tokens(Cost::Output).unwrap().with_each_request(2);
        assert_eq!(program.cost(&USAGE, &asking("m")), 12_000);
        assert_eq!(program.to_string(), "output_tokens, and 2 a request");
        assert_ne!(program, CostProgram::of_tokens(Cost::Output).unwrap());
    }

    #[test]
    fn what_can_never_be_a_cost_does_not_compile() {
        assert_eq!(error("input_tokens +"), "line 1, column 15 of the expression: mismatched input '<EOF>'");
        assert_eq!(error("input_tokens * 2"), "the types do not fit: cannot mul uint and int");
        assert_eq!(error("input_tokens * 0.5"), "the types do not fit: cannot mul uint and double");
        assert_eq!(error("input_token"), "there is no variable `input_token`");
        assert_eq!(error("max(input_tokens, 1u)"), "there is no function `max` here");
        assert_eq!(error("model"), "it yields a string for an answer of 0 tokens, not a number from 0 on");
        assert_eq!(error("-1"), "it yields -1 for an answer of 0 tokens, not a number from 0 on");
        assert_eq!(error("1.0 / 0.0"), "it yields inf for an answer of 0 tokens, not a number from 0 on");
        assert_eq!(error("input_tokens / output_tokens"), "it fails for an answer of 0 tokens: it divides by zero");
        assert_eq!(
            error("cached_input_tokens - input_tokens"),
            "it fails for an answer of 1200 tokens: `sub` leaves the range of its type (a uint is never below 0)"
        );
        assert_eq!(error("model.size"), "fields, maps and messages are no part of a cost");
        assert_eq!(error("[1, 2].map(x, x)[0]"), "there is no function `map` here");
    }

    #[test]
    fn a_branch_that_no_sample_takes_is_checked_too() {
        assert_eq!(
            error("model == 'x' ? input_tokens * 2 : input_tokens"),
            "the types do not fit: cannot mul uint and int"
        );
        assert_eq!(cost("output_tokens > 0u ? input_tokens / output_tokens : 0u"), 10_000);
    }

    #[test]
    fn an_expression_that_fails_with_an_answers_numbers_costs_all_of_its_tokens_and_is_counted() {
        let odd = Usage { cached_input: 200, ..USAGE };
        let huge = Usage { input: 1 << 53, output: 1 << 53, total: 1 << 53, ..USAGE };
        let limit = Arc::from("ns/policy/odd");
        let of = |source, usage| CostProgram::compile(source).unwrap().of_limit(&limit).cost(usage, &asking("m"));
        assert_eq!(of("input_tokens - cached_input_tokens", &odd), 110_000);
        assert_eq!(of("int(input_tokens) - int(cached_input_tokens)", &odd), 110_000, "below 0");
        assert_eq!(of("double(input_tokens) - double(cached_input_tokens)", &odd), 110_000, "below 0");
        assert_eq!(of("input_tokens * output_tokens", &huge), MAX_COUNT);
        assert_eq!(of("input_tokens", &USAGE), 100_000);
        let program = CostProgram::compile("input_tokens - cached_input_tokens").unwrap().of_limit(&limit);
        assert_eq!(program.expected_cost(&odd, &asking("m")), 110_000);
        assert!(CostProgram::fallbacks().contains(&(limit, 4)));
    }

    #[test]
    fn nothing_that_is_long_or_deep_or_huge_is_more_than_an_error() {
        let long = [
            format!("1u{}", "+1u".repeat(1_300)),
            format!("{}1{}", "(".repeat(1_900), ")".repeat(1_900)),
            "(".repeat(4_000),
            format!("{}1", "true ? 1 : ".repeat(300)),
            format!("{}1{}", "true ? ".repeat(300), " : 1".repeat(300)),
            format!("size({}[1]{})", "[".repeat(200), "]".repeat(200)),
            format!("size(model{})", " + model".repeat(400)),
            format!("total_tokens{}", "[0]".repeat(1_300)),
            format!("model{}", ".a".repeat(1_900)),
        ];
        for source in &long {
            assert!(CostProgram::compile(source).is_err(), "{source}");
        }
        assert_eq!(error(&"1".repeat(5_000)), "the expression has 5000 bytes, more than 4096");
        for number in ["99999999999999999999999u", "1e999", "18446744073709551615u + 1u", "9007199254740993.0"] {
            assert!(CostProgram::compile(number).is_err(), "{number}");
        }
        let deepest = format!("1u{}", " + 1u".repeat(MAX_DEPTH - 2));
        let program = CostProgram::compile(&deepest).unwrap();
        let small = std::thread::Builder::new().stack_size(512 * 1024);
        assert_eq!(small.spawn(move || program.cost(&USAGE, &asking("m"))).unwrap().join().unwrap(), 127_000);
    }

    fn nasty() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "input_tokens",
            "total_tokens",
            "model",
            "1u",
            "0u",
            "-1",
            "0.0",
            "1e308",
            "'a'",
            "\"",
            "true",
            "null",
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            "+",
            "-",
            "*",
            "/",
            "%",
            "?",
            ":",
            "==",
            "<",
            "&&",
            "||",
            "!",
            ",",
            ".",
            "in",
            "uint",
            "int",
            "double",
            "size",
            "string",
            "dyn",
            "b'\\xff'",
            "\\u{d800}",
            "9223372036854775807",
            "-9223372036854775808",
        ]);
        prop_oneof![prop::collection::vec(word, 0..24).prop_map(|words| words.join(" ")), "\\PC{0,60}",]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn no_expression_and_no_usage_makes_it_panic(
            source in nasty(),
            tokens in prop::array::uniform6(prop_oneof![Just(0), Just(1), Just(1 << 53), Just(u64::MAX), any::<u64>()]),
        ) {
            let [input, output, total, cached_input, cache_creation_input, reasoning] = tokens;
            let usage = Usage { input, output, total, cached_input, cache_creation_input, reasoning };
            match CostProgram::compile(&source) {
                Ok(program) => prop_assert!(program.cost(&usage, &asking("m")) <= MAX_COUNT),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
