//! One list of a resource's fields. From it, [`resource!`] generates the types
//! that create, change and show the resource; [`view!`] generates a type that
//! only shows it. The audit log records what the view shows.

/// Declares the representation of a database row, with its conversion from the
/// row. A field has the value of the row's field of the same name unless `=`
/// names another one, or `= ()` leaves it empty for the caller to fill.
macro_rules! view {
    (
        $(#[$meta:meta])*
        $vis:vis struct $View:ident from $Row:ty {
            $(
                $(#[$field_meta:meta])*
                $field:ident: $ty:ty
                    $([$value:expr])? $(= $source:ident $(.$method:ident($($arg:tt)*))*)?
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(serde::Serialize, utoipa::ToSchema)]
        $vis struct $View {
            $($(#[$field_meta])* $field: $ty,)*
        }

        impl From<$Row> for $View {
            fn from(row: $Row) -> Self {
                Self {
                    $($field: $crate::api::framework::fields::view!(
                        @value row, $field $([$value])? $(= $source $(.$method($($arg)*))*)?
                    ),)*
                }
            }
        }
    };
    (@value $row:ident, $field:ident) => { $row.$field };
    (@value $row:ident, $field:ident [$value:expr]) => { $value };
    (@value $row:ident, $field:ident = $source:ident $(.$method:ident($($arg:tt)*))*) => {
        $row.$source$(.$method($($arg)*))*
    };
}

/// Declares a resource by one list of its fields:
///
/// ```text
/// resource! {
///     /// Documentation of the view, the new resource and the patch.
///     view TeamView from TeamRow { id: i64 }   // fields that are only shown
///     new NewTeam;
///     patch TeamPatch;
///     fields {
///         /// Documentation of the field.
///         name: required String [example = "research"] => checks::name,
///     }
/// }
/// ```
///
/// The brackets hold attributes of the OpenAPI schema. The function after `=>`
/// gets the field's name and the value, and returns the value to be stored.
/// `as TYPE` is the type in the row and the view, if it is another.
///
/// | kind | when created | when changed | stored |
/// | --- | --- | --- | --- |
/// | `required` | has to be given | absent keeps | `T` |
/// | `optional` | absent or `null` is the default | absent keeps | `T` |
/// | `defaulted` | absent is the default | absent keeps | `T` |
/// | `nullable` | absent is the default | absent keeps, `null` clears | `Option<T>` |
/// | `clearable` | absent is the default | absent keeps, `null` empties | `T` |
/// | `create_only` | has to be given | cannot be changed | by the handler |
/// | `patch_only` | cannot be given | absent keeps | `T` |
///
/// A field that is `custom` is in the types of requests only; the handler shows
/// and stores it. Before a field, `@view { … }`, `@new { … }` and `@patch { … }`, in
/// this order, hold attributes that it has in one of the types only.
macro_rules! resource {
    (
        $(#[$view_meta:meta])*
        view $View:ident from $Row:ty { $($shown:tt)* }
        $(#[$new_meta:meta])*
        new $New:ident;
        $(#[$patch_meta:meta])*
        patch $Patch:ident;
        fields { $($fields:tt)* }
    ) => {
        $crate::api::framework::fields::resource! {
            @field
            {
                {
                    { $(#[$view_meta])* pub(crate) struct $View from $Row }
                    { $(#[$new_meta])* } $New
                    { $(#[$patch_meta])* } $Patch
                    { $Row }
                }
                { $($shown)* } {} {} {} {}
            }
            $($fields)*
        }
    };

    // Each field in turn: its attributes, its parts, then what its kind adds to each
    // of the types.
    (@field $types:tt
        $(@view { $(#[$view:meta])* })? $(@new { $(#[$new:meta])* })?
        $(@patch { $(#[$patch:meta])* })? $(#[$meta:meta])*
        $field:ident: $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @parts $types
            {
                { $($(#[$view])*)? $(#[$meta])* }
                { $($(#[$new])*)? $(#[$meta])* }
                { $($(#[$patch])*)? $(#[$meta])* }
            }
            $field $($rest)*
        }
    };
    (@parts $types:tt $meta:tt $field:ident
        custom $kind:ident $ty:ty as $schema_ty:ty $([$($schema:tt)*])?, $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @$kind custom $meta $field { $ty } { $schema_ty } { () } [$($($schema)*)?] []
            $types $($rest)*
        }
    };
    (@parts $types:tt $meta:tt $field:ident
        custom $kind:ident $ty:ty $([$($schema:tt)*])?, $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @$kind custom $meta $field { $ty } { $ty } { () } [$($($schema)*)?] []
            $types $($rest)*
        }
    };
    (@parts $types:tt $meta:tt $field:ident
        $kind:ident $ty:ty as $row_ty:ty $([$($schema:tt)*])? $(=> $check:expr)?, $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @$kind stored $meta $field { $ty } { $ty } { $row_ty } [$($($schema)*)?] [$($check)?]
            $types $($rest)*
        }
    };
    (@parts $types:tt $meta:tt $field:ident
        $kind:ident $ty:ty $([$($schema:tt)*])? $(=> $check:expr)?, $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @$kind stored $meta $field { $ty } { $ty } { $ty } [$($($schema)*)?] [$($check)?]
            $types $($rest)*
        }
    };

    // The kinds whose value can be changed, but not cleared, differ in how they are created.
    (@required $how:ident { $view:tt { $($new:tt)* } $patch:tt } $field:ident { $ty:ty }
        $schema_ty:tt $row_ty:tt [$($schema:tt)*] $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @changeable given { $($new)* #[schema($($schema)*)] $field: $ty, }
            $how $view $patch $field { $ty } $row_ty [$($schema)*] $($rest)*
        }
    };
    (@optional $how:ident { $view:tt { $($new:tt)* } $patch:tt } $field:ident { $ty:ty }
        $schema_ty:tt $row_ty:tt [$($schema:tt)*] $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @changeable same { $($new)* #[schema($($schema)*)] $field: Option<$ty>, }
            $how $view $patch $field { $ty } $row_ty [$($schema)*] $($rest)*
        }
    };
    (@defaulted $how:ident { $view:tt { $($new:tt)* } $patch:tt } $field:ident { $ty:ty }
        $schema_ty:tt $row_ty:tt [$($schema:tt)*] $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @changeable same
            {
                $($new)*
                #[schema(nullable = false, $($schema)*)]
                #[serde(default, deserialize_with = "crate::api::framework::patch::present")]
                $field: Option<$ty>,
            }
            $how $view $patch $field { $ty } $row_ty [$($schema)*] $($rest)*
        }
    };
    (@patch_only $how:ident { $view:tt $new:tt $patch:tt } $field:ident $ty:tt
        $schema_ty:tt $row_ty:tt $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @changeable absent {} $how $view $patch $field $ty $row_ty $($rest)*
        }
    };
    (@changeable $move:ident $new:tt $how:ident { $($view:tt)* } { $($patch:tt)* } $field:ident
        { $ty:ty } { $row_ty:ty } [$($schema:tt)*] $check:tt $types:tt $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @$how $types { $($view)* $field: $row_ty, } $new
            {
                $($patch)*
                #[schema(nullable = false, $($schema)*)]
                #[serde(default, deserialize_with = "crate::api::framework::patch::present")]
                $field: Option<$ty>,
            }
            { ($move $field) } { (plain $field $check) } $($rest)*
        }
    };

    // The kinds whose value can be cleared.
    (@nullable $how:ident $meta:tt $field:ident $ty:tt $schema_ty:tt { $row_ty:ty } $($rest:tt)*) => {
        $crate::api::framework::fields::resource! {
            @cleared nullable { Option<$row_ty> } $how $meta $field $ty $schema_ty $($rest)*
        }
    };
    (@clearable $how:ident $meta:tt $field:ident $ty:tt $schema_ty:tt $row_ty:tt $($rest:tt)*) => {
        $crate::api::framework::fields::resource! {
            @cleared clearable $row_ty $how $meta $field $ty $schema_ty $($rest)*
        }
    };
    (@cleared $store:ident { $view_ty:ty } $how:ident
        { { $($view:tt)* } { $($new:tt)* } { $($patch:tt)* } } $field:ident { $ty:ty }
        { $schema_ty:ty } [$($schema:tt)*] $check:tt $types:tt $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @$how $types { $($view)* $field: $view_ty, }
            {
                $($new)*
                #[schema(value_type = Option<$schema_ty>, $($schema)*)]
                #[serde(default)]
                $field: $crate::api::framework::Patch<$ty>,
            }
            {
                $($patch)*
                #[schema(value_type = Option<$schema_ty>, $($schema)*)]
                #[serde(default)]
                $field: $crate::api::framework::Patch<$ty>,
            }
            { (same $field) } { ($store $field $check) } $($rest)*
        }
    };

    (@create_only $how:ident { $view:tt { $($new:tt)* } $patch:tt } $field:ident { $ty:ty }
        $schema_ty:tt $row_ty:tt [$($schema:tt)*] $check:tt $types:tt $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @custom $types {} { $($new)* #[schema($($schema)*)] $field: $ty, } {} {} {} $($rest)*
        }
    };

    // Appends a field to the types, and to the lists of those that are moved and stored.
    (@stored
        { $types:tt { $($view:tt)* } $new:tt $patch:tt $both:tt { $($stored:tt)* } }
        { $($add_view:tt)* } $add_new:tt $add_patch:tt $add_both:tt { $($store:tt)* } $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @custom
            { $types { $($view)* $($add_view)* } $new $patch $both { $($stored)* $($store)* } }
            {} $add_new $add_patch $add_both {} $($rest)*
        }
    };
    (@custom
        { $types:tt $view:tt { $($new:tt)* } { $($patch:tt)* } { $($both:tt)* } $stored:tt }
        $add_view:tt { $($add_new:tt)* } { $($add_patch:tt)* } { $($add_both:tt)* } $store:tt
        $($rest:tt)*
    ) => {
        $crate::api::framework::fields::resource! {
            @field
            {
                $types $view { $($new)* $($add_new)* } { $($patch)* $($add_patch)* }
                { $($both)* $($add_both)* } $stored
            }
            $($rest)*
        }
    };

    // All fields are read.
    (@field {
        {
            { $($view_head:tt)* }
            { $($new_meta:tt)* } $New:ident
            { $($patch_meta:tt)* } $Patch:ident
            { $Row:ty }
        }
        { $($view:tt)* } { $($new:tt)* } { $($patch:tt)* }
        { $(($move:ident $moved:ident))* }
        { $(($store:ident $stored:ident [$($check:tt)?]))* }
    }) => {
        $crate::api::framework::fields::view! { $($view_head)* { $($view)* } }

        $($new_meta)*
        #[derive(serde::Deserialize, utoipa::ToSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $New { $($new)* }

        $($patch_meta)*
        #[derive(serde::Deserialize, utoipa::ToSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $Patch { $($patch)* }

        impl $New {
            /// The given fields, as a change of the defaults.
            fn into_patch(self) -> $Patch {
                $Patch {
                    $($moved: $crate::api::framework::fields::resource!(@move $move self.$moved),)*
                }
            }
        }

        impl $Patch {
            /// Checks the given fields and stores them in the row.
            fn apply_to(self, row: &mut $Row) -> Result<(), $crate::api::framework::ApiError> {
                $($crate::api::framework::fields::resource!(
                    @store $store $stored [$($check)?] self row
                );)*
                Ok(())
            }
        }
    };
    (@move given $value:expr) => { Some($value) };
    (@move same $value:expr) => { $value };
    (@move absent $value:expr) => { None };
    (@store plain $field:ident [$($check:expr)?] $self:ident $row:ident) => {
        if let Some(value) = $self.$field {
            $row.$field = $crate::api::framework::fields::resource!(@check $field value $($check)?);
        }
    };
    (@store nullable $field:ident [$($check:expr)?] $self:ident $row:ident) => {
        match $self.$field {
            $crate::api::framework::Patch::Keep => {}
            $crate::api::framework::Patch::Clear => $row.$field = None,
            $crate::api::framework::Patch::Set(value) => {
                $row.$field = Some($crate::api::framework::fields::resource!(@check $field value $($check)?));
            }
        }
    };
    (@store clearable $field:ident [$($check:expr)?] $self:ident $row:ident) => {
        match $self.$field {
            $crate::api::framework::Patch::Keep => {}
            $crate::api::framework::Patch::Clear => $row.$field = Default::default(),
            $crate::api::framework::Patch::Set(value) => {
                $row.$field = $crate::api::framework::fields::resource!(@check $field value $($check)?);
            }
        }
    };
    (@check $field:ident $value:ident) => { $value };
    (@check $field:ident $value:ident $check:expr) => { $check(stringify!($field), $value)? };
}

pub(crate) use {resource, view};
